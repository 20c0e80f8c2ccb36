"""Callers that chat with one server, and the durations of its completions.

Each caller is a thread with one connection and one request in flight. A response other than 200 with usage ends the
whole run: figures without failures would flatter a server that fails. Only a server's known fault is retried. Retries
are counted, and their time is part of the completion's.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import queue
import statistics
import threading
import time
from dataclasses import dataclass

from load import COMPLETIONS
from processes import Failed
from prompts import Chat

TEMPERATURE = 0.7
RESPONSE_TIMEOUT_SECONDS = 300
MAX_FAULTS = 3  # known faults per request


@dataclass(frozen=True)
class Server:
    port: int
    headers: dict[str, str]
    known_fault: str | None = None  # a 500 that contains this is retried


@dataclass(frozen=True)
class Completion:
    text: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    faults: int  # known faults that were retried


@dataclass(frozen=True)
class Measurement:
    """One run of one scenario against one server."""

    seconds: float
    completions: list[Completion]

    def requests_per_second(self) -> float:
        return len(self.completions) / self.seconds

    def tokens_per_second(self) -> float:
        return sum(completion.completion_tokens for completion in self.completions) / self.seconds

    def latency(self, share: float) -> float:
        """The quantile, in seconds."""
        ordered = sorted(completion.seconds for completion in self.completions)
        return ordered[math.ceil(share * len(ordered)) - 1]

    def mean_prompt_tokens(self) -> float:
        return statistics.mean(completion.prompt_tokens for completion in self.completions)

    def mean_completion_tokens(self) -> float:
        return statistics.mean(completion.completion_tokens for completion in self.completions)


def measure(server: Server, chats: list[Chat], at_a_time: int) -> Measurement:
    """Runs all chats with `at_a_time` concurrent callers."""
    waiting: queue.SimpleQueue[Chat] = queue.SimpleQueue()
    for chat in chats:
        waiting.put(chat)
    completions: list[Completion] = []
    failures: list[Exception] = []

    def call() -> None:
        try:
            with contextlib.closing(_connect(server)) as connection, contextlib.suppress(queue.Empty):
                while not failures:
                    completions.extend(_converse(server, connection, waiting.get_nowait()))
        except Exception as failure:
            failures.append(failure)

    # Daemons, so that an interrupted run does not wait for requests in flight.
    callers = [threading.Thread(target=call, daemon=True) for _ in range(min(at_a_time, len(chats)))]
    begin = time.monotonic()
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    seconds = time.monotonic() - begin
    if failures:
        raise failures[0]
    return Measurement(seconds, completions)


def ask(server: Server, chat: Chat) -> Completion:
    """Completes a chat of one turn, on a new connection."""
    with contextlib.closing(_connect(server)) as connection:
        return _converse(server, connection, chat)[0]


def _connect(server: Server) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=RESPONSE_TIMEOUT_SECONDS)


def _converse(server: Server, connection: http.client.HTTPConnection, chat: Chat) -> list[Completion]:
    """Sends the questions one by one, each with the whole history."""
    said = [{"role": "system", "content": chat.system}] if chat.system else []
    completions = []
    for question in chat.questions:
        said.append({"role": "user", "content": question})
        completions.append(_complete(server, connection, said, chat.max_tokens))
        said.append({"role": "assistant", "content": completions[-1].text})
    return completions


def _complete(
    server: Server, connection: http.client.HTTPConnection, said: list[dict[str, str]], max_tokens: int,
) -> Completion:
    request = {"model": "adriaticum", "messages": said, "temperature": TEMPERATURE, "max_tokens": max_tokens}
    begin = time.monotonic()
    for faults in range(MAX_FAULTS + 1):
        status, body = _post(server, connection, request)
        if not (status == 500 and server.known_fault and server.known_fault in body):
            break
    seconds = time.monotonic() - begin
    if status != 200:
        raise Failed(f"status {status} after {seconds:.1f} s: {body[:500]}")
    try:
        completion = json.loads(body)
        text, usage = completion["choices"][0]["message"]["content"], completion["usage"]
        return Completion(text, usage["prompt_tokens"], usage["completion_tokens"], seconds, faults)
    except (ValueError, LookupError, TypeError) as error:
        raise Failed(f"a response without text or usage: {body[:500]}") from error


def _post(server: Server, connection: http.client.HTTPConnection, request: dict[str, object]) -> tuple[int, str]:
    headers = server.headers | {"Content-Type": "application/json"}
    try:
        connection.request("POST", COMPLETIONS, json.dumps(request), headers)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise Failed(f"no response: {error!r}") from error
