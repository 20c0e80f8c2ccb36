"""LangChain, by langchain-openai."""

import cases
from langchain_openai import ChatOpenAI
from openai import omit


def ask(case):
    model = ChatOpenAI(
        model="adriaticum",
        base_url=case["base_url"],
        api_key=case["api_key"],
        extra_body={"stream": omit, "max_tokens": 100},
    )
    answer = model.invoke(case["content"])
    usage = answer.usage_metadata
    return answer.content, [usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]]


cases.run(ask)
