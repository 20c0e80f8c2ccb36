"""The scenarios for the engines, and chats generated from word lists.

The same repetition number always gives the same chats, so that contenders can be compared. Another number gives other
chats, so that no cache of an earlier repetition helps. Within a repetition no two chats begin with the same word,
unless they share a system prompt. All chats are within the limits of our API.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

SHARED_RULES = 19  # make a system prompt of about 450 tokens
LONG_NOTES = 88  # make a prompt of about 1,500 tokens


@dataclass(frozen=True)
class Scenario:
    """A number of conversations, `at_a_time` in parallel. Each turn waits for the completion before."""

    name: str
    about: str
    at_a_time: int
    conversations: int
    quick_conversations: int
    max_tokens: int
    turns: int = 1
    compares_requests: bool = False  # if most of the work is in the prompts; else tokens/s
    beside_a_busy_process: bool = False

    def title(self) -> str:
        busy = ", with one busy process" if self.beside_a_busy_process else ""
        return f"{self.name}, {self.at_a_time} at a time{busy}"


SCENARIOS = (
    Scenario("short", "independent chats", 1, 12, 3, max_tokens=64),
    Scenario("short", "independent chats", 16, 48, 16, max_tokens=64),
    Scenario("shared", "one system prompt, different questions", 16, 48, 16, max_tokens=32, compares_requests=True),
    Scenario("turns", "conversations of 4 turns that resend their history", 8, 8, 4, max_tokens=48, turns=4),
    Scenario("long", "long prompts, different from the first token on", 8, 8, 2, max_tokens=32),
    Scenario(
        "busy", "independent chats, beside a process that computes all the time, with the same priority", 1, 2, 1,
        max_tokens=32, beside_a_busy_process=True,
    ),
)


# For a machine with a GPU, which computes many requests at a time.
GPU_SCENARIOS = (
    Scenario("short", "independent chats", 1, 24, 6, max_tokens=64),
    Scenario("short", "independent chats", 16, 128, 32, max_tokens=64),
    Scenario("short", "independent chats", 64, 512, 128, max_tokens=64),
    Scenario("short", "independent chats", 128, 768, 128, max_tokens=64),
    Scenario("shared", "one system prompt, different questions", 64, 512, 128, max_tokens=32, compares_requests=True),
    Scenario("turns", "conversations of 4 turns that resend their history", 32, 96, 32, max_tokens=48, turns=4),
    Scenario("long", "long prompts, different from the first token on", 8, 48, 16, max_tokens=32, compares_requests=True),
    Scenario("long", "long prompts, different from the first token on", 32, 96, 32, max_tokens=32, compares_requests=True),
)


@dataclass(frozen=True)
class Chat:
    """The messages of one caller; the completions in between come from the model."""

    questions: tuple[str, ...]
    max_tokens: int
    system: str | None = None


def make(repetition: int, quick: bool, scenarios: tuple[Scenario, ...]) -> list[tuple[Scenario, list[Chat]]]:
    """All scenarios with their chats, in the order in which they run."""
    words = random.Random(f"repetition {repetition}")
    names = _names(words)
    return [(scenario, _chats(scenario, words, names, quick)) for scenario in scenarios]


def _names(words: random.Random) -> Iterator[str]:
    """Never returns the same one twice."""
    yield from words.sample(NAMES, len(NAMES))
    for number in itertools.count(2):
        yield from (f"{number}{name}" for name in words.sample(NAMES, len(NAMES)))


def first(repetition: int) -> Chat:
    """A short chat like no other, for the first completion of a server."""
    words = random.Random(f"first of repetition {repetition}")
    return Chat((f"{repetition}. {_question(words)}",), max_tokens=8)


def _chats(scenario: Scenario, words: random.Random, names: Iterator[str], quick: bool) -> list[Chat]:
    count = scenario.quick_conversations if quick else scenario.conversations
    system = None
    if scenario.name == "shared":
        system = _house_rules(next(names), words)
        names = _names(words)
    return [Chat(_questions(scenario, next(names), words), scenario.max_tokens, system) for _ in range(count)]


def _questions(scenario: Scenario, name: str, words: random.Random) -> tuple[str, ...]:
    if scenario.name == "long":
        notes = " ".join(_note(words) for _ in range(LONG_NOTES))
        return (f"{name} wrote these notes. {notes} Explain in detail what the notes are about.",)
    later = (f"{words.choice(NAMES)} has another question. {_question(words)}" for _ in range(scenario.turns - 1))
    return (f"{name} asks. {_question(words)}", *later)


def _question(words: random.Random) -> str:
    return (
        f"Describe in detail how the {words.choice(QUALITIES)} {words.choice(TRADES)} should {words.choice(DEEDS)} "
        f"the {words.choice(QUALITIES)} {words.choice(THINGS)} {words.choice(TIMES)}, step by step."
    )


def _note(words: random.Random) -> str:
    return (
        f"{words.choice(NAMES)}, the {words.choice(QUALITIES)} {words.choice(TRADES)}, wanted to "
        f"{words.choice(DEEDS)} the {words.choice(QUALITIES)} {words.choice(THINGS)} {words.choice(TIMES)}."
    )


def _house_rules(name: str, words: random.Random) -> str:
    rules = (
        f"{number}. Whoever asks about the {words.choice(QUALITIES)} {words.choice(THINGS)} is told what every "
        f"{words.choice(TRADES)} knows about it {words.choice(TIMES)}."
        for number in range(1, SHARED_RULES + 1)
    )
    return f"{name} has a museum of crafts, and you answer its visitors. The house rules:\n" + "\n".join(rules)


# English names only: with others a small model switches to other scripts.
NAMES = """
Abigail Adam Albert Alexander Alfred Alice Amanda Amy Andrew Angela Anna Anthony Arthur Barbara Benjamin Bernard Betty
Brian Caroline Catherine Charles Charlotte Christopher Clara Daniel David Deborah Dennis Diana Donald Dorothy Douglas
Edgar Edith Edward Eleanor Elizabeth Emily Emma Eric Ethan Evelyn Florence Frances Frank Frederick George Gerald Gloria
Grace Gregory Hannah Harold Harriet Harry Helen Henry Howard Hugh Irene Isaac Isabella Jack Jacob James Jane Janet Jason
Jennifer Jeremy Jessica Joan John Jonathan Joseph Joshua Judith Julia Karen Keith Kenneth Kevin Laura Lawrence Leonard
Lewis Linda Louis Lucy Margaret Maria Mark Martha Martin Mary Matthew Megan Michael Nancy Nathan Nicholas Nicole Oliver
Oscar Pamela Patricia Patrick Paul Peter Philip Rachel Ralph Raymond Rebecca Richard Robert Roger Ronald Rose Russell
Ruth Samuel Sandra Sarah Scott Sharon Simon Sophia Stanley Stephen Susan Teresa Theodore Thomas Timothy Victor Victoria
Vincent Virginia Walter Wendy William
""".split()

QUALITIES = """
ancient bright broken careful cheap clever cold crooked curious damp dusty early empty famous fragile gentle golden
heavy hidden honest humble hungry huge lazy little lonely loud modern muddy narrow noisy nervous old painted patient
plain polite proud quick quiet rusty secret shiny silent simple sleepy slow small strange stubborn tall tired tiny
wooden young
""".split()

TRADES = """
actor baker barber beekeeper blacksmith bookbinder brewer bricklayer butcher captain carpenter clockmaker cook doctor
farmer ferryman fisherman gardener glazier goldsmith hunter judge librarian locksmith mason merchant midwife miller
miner nurse painter pilot plumber potter printer sailor saddler shepherd shoemaker singer soldier tailor tanner teacher
thatcher translator waiter watchman weaver writer
""".split()

DEEDS = """
borrow build buy carry clean copy draw find fix hide lend lose measure move paint repair replace sell weigh
""".split()

THINGS = """
anchor barrel basket bell bicycle boat book bottle bridge candle carpet carriage chair chimney clock cradle cupboard
door drum fence flag fountain gate globe guitar hammer harbour kettle kite ladder lamp lantern letter map mill mirror
needle oven piano pump ring roof rope saddle sail scale ship statue stove table telescope tent tower trumpet umbrella
violin wagon wheel window
""".split()

TIMES = (
    "after the harvest", "at low tide", "at midnight", "before breakfast", "before the storm", "during the market",
    "during the winter", "in a single day", "in heavy rain", "in the dark", "on a holiday", "on a Sunday",
    "once a year", "since the flood", "under the bridge", "while nobody watches", "with one hand", "without any help",
    "without any money", "without tools",
)
