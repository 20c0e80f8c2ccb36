"""LiteLLM's client."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import cases
import litellm

# It would print advice among what we print.
litellm.suppress_debug_info = True


def ask(case):
    answer = litellm.completion(
        model="openai/adriaticum",
        api_base=case["base_url"],
        api_key=case["api_key"],
        messages=[{"role": "user", "content": case["content"]}],
        max_tokens=100,
    )
    usage = answer.usage
    return answer.choices[0].message.content, [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]


cases.run(ask)
