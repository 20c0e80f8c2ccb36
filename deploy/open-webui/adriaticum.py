"""
title: Adriaticum
description: Chats with the model of an Adriaticum service.
version: 1.0.0
required_open_webui_version: 0.10.0
"""

# A function for Open WebUI, which shows it as a model. docs/clients.md says how to install it. Open WebUI gets whole
# answers from it: the API needs neither streaming nor a list of models. It sends no member that the API rejects.

import asyncio
import json
import logging
import re
from urllib.parse import unquote

# Open WebUI's own HTTP client. The stop button cancels `pipe`: aiohttp then closes the connection, and the service
# stops generating. A request in a thread would go on.
import aiohttp
from pydantic import BaseModel, Field

# Limits of the API.
MAX_MESSAGES = 20
MAX_CHARACTERS = 10_000
MAX_TOTAL_CHARACTERS = 32_000
MAX_TOKENS = 512

LONGEST_RETRY_AFTER_SECONDS = 10
TITLE_CHARACTERS = 60
# Background tasks whose result must be JSON. Others, such as the summary of a long chat, are requests like any other.
JSON_TASKS = {
    "autocomplete_generation",
    "emoji_generation",
    "follow_up_generation",
    "function_calling",
    "image_prompt_generation",
    "memory_review",
    "query_generation",
    "tags_generation",
    "title_generation",
}
# As the service writes it: URL, title, and the title in full (RFC 8187) where it is not ASCII.
SOURCE_LINK = re.compile(r"""<([^>]*)>; rel="cite-as"(?:; title="([^"]*)")?(?:; title\*=UTF-8''([^\s,;]+))?""")

log = logging.getLogger(__name__)


class NoAnswerError(Exception):
    """Open WebUI shows its text in place of an answer, and does not send it with the next message."""


class Pipe:
    class Valves(BaseModel):
        base_url: str = Field(
            default="http://localhost:8080/v1", description="The service's api.base_url. It ends in /v1."
        )
        api_key: str = Field(
            default="", description="adria_…", json_schema_extra={"input": {"type": "password"}}
        )
        timeout: int = Field(
            default=150, ge=1, description="Seconds for an answer. More than the service's runtime.timeout."
        )
        background_tasks: bool = Field(
            default=False,
            description="Let the model write titles, tags, follow-up questions and search queries, too. "
            "Each is one more request. Small models rarely write the JSON that Open WebUI expects.",
        )

    def __init__(self):
        self.valves = self.Valves()

    async def pipe(
        self, body: dict, __event_emitter__=None, __message_id__=None, __task__=None, __task_body__=None
    ) -> str:
        valves, task = self.valves, str(__task__ or "")
        if task in JSON_TASKS and not valves.background_tasks:
            return result_without_model((__task_body__ or body).get("messages") or [])
        # Without a message there is nothing to show events in: a program uses Open WebUI's API.
        emit = __event_emitter__ if __event_emitter__ and __message_id__ and not task else no_events
        messages = text_messages(body.get("messages") or [])
        newest = newest_messages(messages)
        if len(newest) < len(messages):
            await emit(status(f"Sent without the {len(messages) - len(newest)} oldest messages: the API's limits."))
        completion, sources = await send(valves, request_body(body, newest, is_task=bool(task)), emit)
        choice = completion["choices"][0]
        if choice.get("finish_reason") == "length":
            await emit(status("The answer is cut off: at max_tokens, or at the end of the model's context."))
        answer = choice["message"]["content"]
        if task:
            return answer
        if emit is no_events:
            return answer + source_list(sources)
        for event in source_events(sources):
            await emit(event)
        return answer


def result_without_model(messages: list) -> str:
    """For all these tasks at once: the last message is title, search query and image prompt; no tags, no follow-up
    questions, no tool."""
    questions = [text_of(message.get("content")) for message in messages if message.get("role") == "user"]
    question = " ".join(questions[-1].split()) if questions else ""
    return json.dumps({"title": question[:TITLE_CHARACTERS], "queries": [question], "prompt": question})


def text_of(content) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text") or "" for part in content if part.get("type") == "text")
    return content or ""


def text_messages(messages: list) -> list:
    """Roles and texts. What a model with tools left in the chat has no place in this API; failed answers are empty."""
    kept = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and any(part.get("type") != "text" for part in content):
            raise NoAnswerError("This model reads text only. Remove the image or file, or start a new chat.")
        if message.get("role") in ("system", "user", "assistant") and text_of(content).strip():
            kept.append({"role": message["role"], "content": text_of(content)})
    return kept


def newest_messages(messages: list) -> list:
    """System messages, and the newest others, back to one that the API's limits exclude; the last in any case."""
    system = [message for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    kept = others[-1:]
    for message in reversed(others[:-1]):
        total = sum(len(each["content"]) for each in [*system, *kept, message])
        is_full = len(system) + len(kept) >= MAX_MESSAGES or total > MAX_TOTAL_CHARACTERS
        if is_full or len(message["content"]) > MAX_CHARACTERS:
            break
        kept.insert(0, message)
    # An answer whose question is left out goes with it.
    while 1 < len(kept) < len(others) and kept[0]["role"] == "assistant":
        del kept[0]
    return system + kept


def request_body(body: dict, messages: list, is_task: bool) -> dict:
    request = {"model": "adriaticum", "messages": messages}
    if body.get("temperature") is not None:
        request["temperature"] = body["temperature"]
    max_tokens = body.get("max_tokens") or body.get("max_completion_tokens")
    if max_tokens is not None:
        # Open WebUI sets more than the API allows for its tasks. In a chat a person has set it, and is told.
        request["max_tokens"] = min(max_tokens, MAX_TOKENS) if is_task else max_tokens
    return request


async def send(valves: Pipe.Valves, request: dict, emit) -> tuple:
    """The completion and its sources. Sends again once if the service is full for a few seconds."""
    url = valves.base_url.strip().rstrip("/") + "/chat/completions"
    headers = {"Authorization": f"Bearer {valves.api_key.strip()}", "Content-Type": "application/json"}
    # With `\u` escapes, messages within the API's limits could be larger than a body may be.
    data = json.dumps(request, ensure_ascii=False).encode(errors="replace")
    timeout = aiohttp.ClientTimeout(total=valves.timeout)
    try:
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
            for is_last in (False, True):
                async with session.post(url, data=data, headers=headers, allow_redirects=False) as response:
                    text = await response.text(errors="replace")
                if response.status == 200:
                    return completion_of(text, url), sources_of(response.headers.getall("Link", []))
                seconds = retry_after(response)
                if is_last or seconds is None:
                    raise NoAnswerError(sentence_of(response.status, text, url))
                await emit(status(f"The service is full. Trying again in {seconds} s."))
                await asyncio.sleep(seconds)
    except asyncio.TimeoutError:
        raise NoAnswerError(f"There was no answer within {valves.timeout} seconds.") from None
    except (aiohttp.ClientError, ValueError) as error:
        log.warning("no answer from %s: %r", url, error)
        raise NoAnswerError("The service cannot be reached. Open WebUI's log has the reason.") from None


def retry_after(response) -> int | None:
    seconds = response.headers.get("Retry-After", "")
    if response.headers.get("x-should-retry") != "true" or not seconds.isdecimal():
        return None
    return int(seconds) if int(seconds) <= LONGEST_RETRY_AFTER_SECONDS else None


def completion_of(text: str, url: str) -> dict:
    try:
        completion = json.loads(text)
        if isinstance(completion["choices"][0]["message"]["content"], str):
            return completion
    except (ValueError, LookupError, TypeError):
        pass
    raise NoAnswerError(unknown_service(200, url))


def sentence_of(status_code: int, text: str, url: str) -> str:
    try:
        error = json.loads(text)["error"]
        return f"{error['message']} ({error['code']}, request {error['request_id']})"
    except (ValueError, LookupError, TypeError):
        return unknown_service(status_code, url)


def unknown_service(status_code: int, url: str) -> str:
    log.warning("%s responded with %s, which is not Adriaticum's", url, status_code)
    return f"Something else than Adriaticum responded, with status {status_code}. Check the base URL in the valves."


def sources_of(links: list) -> list:
    """Titles and URLs of sources, in order: the first is [1]."""
    found = [link for header in links for link in SOURCE_LINK.findall(header)]
    return [(unquote(in_full) or title or url, url) for url, title, in_full in found]


def source_events(sources: list) -> list:
    """Open WebUI merges sources of the same name, which would shift the numbers behind them. If URLs were in
    `metadata`, it would show them instead of titles, and the browser would fetch icons for them from Google."""
    events, names = [], set()
    for number, (title, url) in enumerate(sources, 1):
        name = f"{title} ({number})" if title in names else title
        names.add(name)
        link = {"url": url} if url.startswith(("http://", "https://")) else {}
        data = {
            "source": {"name": name, **link},
            "document": [url],
            "metadata": [{"source": f"source {number}", "name": name}],
        }
        events.append({"type": "source", "data": data})
    return events


def source_list(sources: list) -> str:
    lines = [f"[{number}] {escaped(title)} <{url}>" for number, (title, url) in enumerate(sources, 1)]
    return "\n\n" + "  \n".join(lines) if lines else ""


def escaped(title: str) -> str:
    return re.sub(r"([\\`*_\[\]<>])", r"\\\1", title)


def status(description: str) -> dict:
    return {"type": "status", "data": {"description": description, "done": True}}


async def no_events(event: dict) -> None:
    pass
