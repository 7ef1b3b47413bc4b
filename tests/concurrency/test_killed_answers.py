"""Processes that are killed while they stream an answer: the flushed text is a draft, and enters the log only if kept.

LANGO_STORE_TURN_ROUNDS sets the number of rounds.
"""

import os
import random
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from support.factories import contents
from support.polling import until
from support.processes import Program, run_program
from support.turns import messages_of

from lango_store import Conversation, Draft, Store, interchange, schema

pytestmark = pytest.mark.slow

ROUNDS: Final = int(os.environ.get("LANGO_STORE_TURN_ROUNDS", "4"))

STREAMER = """
import random, sys
from datetime import timedelta
from itertools import count
from lango_store import Message, Store

url, key, pieces, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
choose, words = random.Random(seed), count()
flush = choose.choice([timedelta(0), timedelta(days=1)])
with Store(url) as store:
    conversation = store.conversation(key)
    with conversation.turn("request", lease=timedelta(seconds=0.1), wait=timedelta(seconds=50), flush=flush) as turn:
        if not turn.replayed:
            turn.append(Message.user("question"))
            if not any(message.role == "assistant" for message in turn.messages):
                for _ in range(pieces):
                    for _ in range(choose.randrange(1, 4)):
                        turn.write("".join(f"n{next(words)} " for _ in range(int(10 ** choose.uniform(0, 3)))))
                    turn.flush()
                    print(len(turn.draft_text), flush=True)
                turn.append(Message.assistant(turn.draft_text))
            print("answered", flush=True)
    print("saved", flush=True)
"""
"""Streams the words n0, n1, n2 and so on; prints the length of the flushed text after each flush."""


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """Yield a store with a search index and with the clock of the database, which the processes use too."""
    with Store(url) as store:
        schema.enable_search(store.engine)
        yield store


def killed(url: str, key: str, pieces: int, choose: random.Random, *, after: int) -> list[str]:
    """Kill a process at a random moment after it has printed some lines; return all lines that it printed."""
    with Program(STREAMER, url, key, pieces, choose.getrandbits(32)) as process:
        lines = [process.stdout.readline() for _ in range(after)]
        for _ in range(choose.randrange(100_000)):
            """The process continues with its next piece."""
        process.send_signal(signal.SIGKILL)
        lines += list(process.stdout)
        assert "" not in lines, process.stderr.read()
    return [line.strip() for line in lines]


def retried(url: str, key: str, choose: random.Random) -> None:
    again = run_program(STREAMER, url, key, 5, choose.getrandbits(32))
    assert (again.returncode, again.stderr) == (0, "")


def words(length: int) -> str:
    """Return the beginning of the stream."""
    text = ""
    numbers = count()
    while len(text) < length:
        text += "".join(f"n{next(numbers)} " for _ in range(1_000))
    return text[:length]


def exported(store: Store, key: str, folder: Path) -> dict[str, int]:
    """Return for each format how many messages of the exported session have the first word of the stream."""
    found: dict[str, int] = {}
    for format in set(interchange.writable()) - {"openai"}:  # which needs a whole answer
        (done,) = interchange.export(store, folder / format, format, keys=[key], replace=True)
        assert done.path is not None, done.error
        lines = Path(done.path).read_text().splitlines()
        found[format] = sum('"n0 ' in line for line in lines if not line.startswith('{"draft":'))  # of a backup
    return found


def assert_streamed(text: str, lines: list[str]) -> None:
    """Check that the text is the start of the stream, and at least as long as the killed process had reported."""
    assert text == words(len(text))
    assert len(text) >= max([int(line) for line in lines if line.isdecimal()], default=0)


def assert_log(conversation: Conversation, *expected: str) -> None:
    assert contents(conversation.all_messages()) == contents(conversation.messages()) == list(expected)
    answers = len(expected) - 1
    assert len(conversation.search("n0").items) == answers
    assert [entry["content"] for entry in conversation.history(unanswered="keep")][: 1 + answers] == list(expected)


def the_draft(conversation: Conversation) -> Draft:
    """Return the only draft after the lease of the killed process has ended."""
    until(lambda: (open_turn := conversation.turns.in_progress()) is not None and not open_turn.held)
    (draft,) = conversation.drafts.list()
    assert draft.turn_id == "request"
    return draft


@pytest.mark.timeout(120 + 5 * ROUNDS)
def test_flushed_text_of_a_killed_process_stays_as_a_draft(url: str, store: Store, tmp_path: Path) -> None:
    """In even rounds the draft is kept, in odd rounds another process tries the turn again."""
    for round in range(ROUNDS):
        choose = random.Random(round)
        conversation = store.open(f"k{round}")
        lines = killed(url, conversation.key, 10_000, choose, after=choose.randrange(1, 25))
        assert_log(conversation, "question")
        draft = the_draft(conversation)
        assert_streamed(draft.text, lines)
        assert_log(conversation, "question")
        assert set(exported(store, conversation.key, tmp_path).values()) == {0}
        if round % 2 == 0:
            kept = conversation.drafts.keep(draft.id)
            assert (kept.role, kept.content, kept.extra) == ("assistant", draft.text, {"interrupted": True})
            assert_log(conversation, "question", draft.text)
            assert conversation.history()[-1] == {"role": "user", "content": "(The answer was interrupted.)"}
            assert conversation.turns.list() == []
        else:
            retried(url, conversation.key, choose)
            (turn,) = conversation.turns.list()
            question, answer = contents(messages_of(conversation, turn))
            assert_streamed(answer, [])
            assert_log(conversation, question, answer)
            assert conversation.turns.in_progress() is None
        assert conversation.drafts.list() == []
        assert set(exported(store, conversation.key, tmp_path).values()) == {1}
    assert [each for each in store.maintenance.examine() if each.name != "settings"] == []


@pytest.mark.timeout(120 + 5 * ROUNDS)
def test_answer_of_a_killed_process_is_either_a_draft_or_in_the_log(url: str, store: Store) -> None:
    """The process is killed while it appends the answer, and in odd rounds while it saves the turn."""
    for round in range(ROUNDS):
        choose = random.Random(round)
        conversation = store.open(f"k{round}")
        lines = killed(url, conversation.key, 2, choose, after=2 + round % 2)
        with store.snapshot() as snapshot:
            seen = snapshot.conversation(conversation.key)
            turns, answers, drafts = seen.turns.list(), seen.all_messages()[1:], seen.drafts.list()
            assert (seen.turns.in_progress() is None) == bool(turns)
        assert len(answers) + len(drafts) == 1
        assert "answered" not in lines or answers
        assert "saved" not in lines or turns
        for each in drafts:
            assert_streamed(each.text, lines)
        retried(url, conversation.key, choose)
        (turn,) = conversation.turns.list()
        question, answer = contents(messages_of(conversation, turn))
        assert_streamed(answer, [])
        assert_log(conversation, question, answer)
        assert conversation.drafts.list() == []
    assert [each for each in store.maintenance.examine() if each.name != "settings"] == []
