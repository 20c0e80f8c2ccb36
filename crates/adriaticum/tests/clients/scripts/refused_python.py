"""Default behaviour of clients that the API refuses."""

import cases
from langchain_openai import ChatOpenAI
from llama_index.llms.openai_like import OpenAILike
from openai import OpenAI, omit


def ask(case):
    url, key, content = case["base_url"], case["api_key"], case["content"]
    match case["name"]:
        case "openai streams":
            messages = [{"role": "user", "content": content}]
            return OpenAI(base_url=url, api_key=key).chat.completions.create(
                model="adriaticum", messages=messages, stream=True
            )
        case "langchain sends stream":
            return ChatOpenAI(model="adriaticum", base_url=url, api_key=key).invoke(content)
        case "langchain renames max_tokens":
            model = ChatOpenAI(
                model="adriaticum", base_url=url, api_key=key, max_tokens=100, extra_body={"stream": omit}
            )
            return model.invoke(content)
        case "llamaindex sends stream":
            return OpenAILike(model="adriaticum", api_base=url, api_key=key, is_chat_model=True).complete(content)
        case "llamaindex asks elsewhere":
            return OpenAILike(model="adriaticum", api_base=url, api_key=key).complete(content)


cases.run(ask)
