"""LlamaIndex, by llama-index-llms-openai-like; with the argument `default` it has its default number of retries."""

import sys

import cases
from llama_index.llms.openai_like import OpenAILike
from openai import omit

RETRIES = {} if "default" in sys.argv else {"max_retries": 1}


def ask(case):
    model = OpenAILike(
        model="adriaticum",
        api_base=case["base_url"],
        api_key=case["api_key"],
        is_chat_model=True,
        max_tokens=100,
        additional_kwargs={"extra_body": {"stream": omit}},
        **RETRIES,
    )
    answer = model.complete(case["content"])
    usage = answer.raw.usage
    return answer.text, [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]


cases.run(ask)
