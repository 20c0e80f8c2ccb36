"""Shared by all Python scripts: reads cases from standard input, and writes their results to standard output."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor


def run(ask):
    """Runs all cases at the same time; `ask` returns the text and the tokens of prompt, completion and both."""
    cases = json.load(sys.stdin)
    with ThreadPoolExecutor(len(cases)) as pool:
        for end in pool.map(lambda case: _end(ask, case), cases):
            print(json.dumps(end), flush=True)


def _end(ask, case):
    try:
        text, tokens = ask(case)
        return {"case": case["name"], "text": text, "tokens": tokens}
    except Exception as error:
        headers = getattr(error, "litellm_response_headers", None) or {}
        return {
            "case": case["name"],
            "exception": type(error).__name__,
            "status": getattr(error, "status_code", None),
            "code": getattr(error, "code", None),
            "request_id": getattr(error, "request_id", None) or headers.get("x-request-id"),
            "said": repr(error)[:500],
        }
