"""OpenAI's library for Python."""

import cases
from openai import OpenAI


def ask(case):
    client = OpenAI(base_url=case["base_url"], api_key=case["api_key"])
    answer = client.chat.completions.create(
        model="adriaticum", messages=[{"role": "user", "content": case["content"]}], max_tokens=100
    )
    usage = answer.usage
    return answer.choices[0].message.content, [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]


cases.run(ask)
