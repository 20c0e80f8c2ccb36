"""Callers that chat with one server, and how long its answers took.

Each caller is a thread with one connection and one request under way. An answer other than 200 with its usage ends
the whole run: figures that leave failures out would flatter whoever fails. Only a fault that a server is known for is
asked about again; that is counted, and the time it took is part of the answer's.
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
ANSWER_SECONDS = 300  # the longest that an answer may take
MOST_FAULTS = 3  # of the known kind, for one request


@dataclass(frozen=True)
class Server:
    """Where to ask."""

    port: int
    headers: dict[str, str]
    known_fault: str | None = None  # what a 500 says that may be asked about again


@dataclass(frozen=True)
class Answer:
    text: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    faults: int  # of the known kind, before it came


@dataclass(frozen=True)
class Measurement:
    """One run of one scenario against one server."""

    seconds: float
    answers: list[Answer]

    def requests_per_second(self) -> float:
        return len(self.answers) / self.seconds

    def tokens_per_second(self) -> float:
        return sum(answer.completion_tokens for answer in self.answers) / self.seconds

    def latency(self, share: float) -> float:
        """The seconds within which that share of the answers came."""
        ordered = sorted(answer.seconds for answer in self.answers)
        return ordered[math.ceil(share * len(ordered)) - 1]

    def mean_prompt_tokens(self) -> float:
        return statistics.mean(answer.prompt_tokens for answer in self.answers)

    def mean_completion_tokens(self) -> float:
        return statistics.mean(answer.completion_tokens for answer in self.answers)


def measure(server: Server, chats: list[Chat], at_a_time: int) -> Measurement:
    """Has all chats answered by `at_a_time` callers, who take the next one when they are done with theirs."""
    waiting: queue.SimpleQueue[Chat] = queue.SimpleQueue()
    for chat in chats:
        waiting.put(chat)
    answers: list[Answer] = []
    failures: list[Exception] = []

    def call() -> None:
        try:
            with contextlib.closing(_connect(server)) as connection, contextlib.suppress(queue.Empty):
                while not failures:
                    answers.extend(_hold(server, connection, waiting.get_nowait()))
        except Exception as failure:
            failures.append(failure)

    # Daemons, so that an interrupted run does not wait for the answers that are under way.
    callers = [threading.Thread(target=call, daemon=True) for _ in range(min(at_a_time, len(chats)))]
    begin = time.monotonic()
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    seconds = time.monotonic() - begin
    if failures:
        raise failures[0]
    return Measurement(seconds, answers)


def ask(server: Server, chat: Chat) -> Answer:
    """The answer to a chat of one turn, on a connection of its own."""
    with contextlib.closing(_connect(server)) as connection:
        return _hold(server, connection, chat)[0]


def _connect(server: Server) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=ANSWER_SECONDS)


def _hold(server: Server, connection: http.client.HTTPConnection, chat: Chat) -> list[Answer]:
    """Asks the chat's questions one by one, each with all that was said before."""
    said = [{"role": "system", "content": chat.system}] if chat.system else []
    answers = []
    for question in chat.questions:
        said.append({"role": "user", "content": question})
        answers.append(_complete(server, connection, said, chat.max_tokens))
        said.append({"role": "assistant", "content": answers[-1].text})
    return answers


def _complete(
    server: Server, connection: http.client.HTTPConnection, said: list[dict[str, str]], max_tokens: int,
) -> Answer:
    request = {"model": "adriaticum", "messages": said, "temperature": TEMPERATURE, "max_tokens": max_tokens}
    begin = time.monotonic()
    for faults in range(MOST_FAULTS + 1):
        status, body = _post(server, connection, request)
        if not (status == 500 and server.known_fault and server.known_fault in body):
            break
    seconds = time.monotonic() - begin
    if status != 200:
        raise Failed(f"status {status} after {seconds:.1f} s: {body[:500]}")
    try:
        completion = json.loads(body)
        text, usage = completion["choices"][0]["message"]["content"], completion["usage"]
        return Answer(text, usage["prompt_tokens"], usage["completion_tokens"], seconds, faults)
    except (ValueError, LookupError, TypeError) as error:
        raise Failed(f"an answer without text or usage: {body[:500]}") from error


def _post(server: Server, connection: http.client.HTTPConnection, request: dict[str, object]) -> tuple[int, str]:
    """The status and the body of what comes back."""
    headers = server.headers | {"Content-Type": "application/json"}
    try:
        connection.request("POST", COMPLETIONS, json.dumps(request), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise Failed(f"no answer: {error!r}") from error
