"""Undo while other processes and threads undo, append, read and compact."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event

import pytest
from support.factories import contents, message, messages, summary
from support.payloads import LARGE
from support.processes import Program
from support.session_checks import assert_sound, unexplained

from lango_store import Conflict, Store

pytestmark = pytest.mark.slow

ROUNDS = 40
UNDO = """
import sys
from datetime import timedelta
from lango_store import Store
with Store(sys.argv[1], keep_removed=timedelta(days=1)) as store:
    conversation = store.conversation("k")
    conversation.info()
    print(flush=True)
    sys.stdin.readline()
    while (undone := conversation.versions.undo()) is not None:
        print(undone.change.seq)
"""


@pytest.fixture
def keeping(url: str) -> Iterator[Store]:
    with Store(url, keep_removed=timedelta(days=1)) as store:
        yield store


def test_each_change_is_taken_back_once_if_four_processes_undo_concurrently(keeping: Store, url: str) -> None:
    conversation = keeping.open("k", messages=messages(20))
    while conversation.pop_message() is not None:
        pass
    programs = [Program(UNDO, url) for _ in range(4)]
    for each in programs:
        assert each.stdout.readline() == "\n"
    for each in programs:
        each.stdin.write("go\n")
        each.stdin.flush()
    ended = [each.communicate() for each in programs]
    assert [errors for _, errors in ended] == [""] * 4
    taken_back = sorted(int(seq) for output, _ in ended for seq in output.split())
    assert taken_back == list(range(21, 41))
    assert contents(conversation.messages()) == [f"message {number}" for number in range(20)]
    assert [each.kind for each in conversation.versions.changes()] == ["pop"] * 20 + ["undo"] * 20
    assert_sound(keeping)


def test_loads_during_edits_and_undo_never_see_half_of_a_change(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message("first"), message(LARGE), message("last")])
    finished = Event()
    states = [["first", LARGE, "last"], ["first", LARGE], ["first", "short", "last"]]

    def keep_loading() -> int:
        loads = 0
        while not finished.is_set():
            session = conversation.get()
            assert session.message_count == len(session.messages)
            earlier = contents(each for each in session.messages if each.role != "assistant")
            assert earlier in states
            assert contents(conversation.get(as_of=3).messages) == states[0]
            loads += 1
        return loads

    def keep_appending() -> list[int]:
        appended = []
        while not finished.is_set():
            appended.append(conversation.append_message(message("new", role="assistant")).seq)
        return appended

    with ThreadPoolExecutor(3) as pool:
        readers, writer = [pool.submit(keep_loading) for _ in range(2)], pool.submit(keep_appending)
        try:
            for number in range(ROUNDS):
                if number % 2:
                    conversation.edits.delete(3)
                else:
                    conversation.edits.update(2, message("short"))
                assert conversation.versions.undo() is not None
        finally:
            finished.set()
        appended = writer.result()
        assert all(reader.result() for reader in readers)
    assert [each.seq for each in conversation.messages()] == [1, 2, 3, *appended]
    assert_sound(keeping)
    with keeping.engine.connect() as connection:
        assert unexplained(connection, "k") == set()


def test_finish_compaction_raises_conflict_after_an_undo_or_redo(keeping: Store) -> None:
    conversation = keeping.open("k", messages=messages(3))
    conversation.pop_message()
    pending = conversation.turns.begin_compaction()
    assert pending is not None
    conversation.versions.undo()
    with pytest.raises(Conflict):
        pending.finish(summary())
    pending = conversation.turns.begin_compaction()
    assert pending is not None
    conversation.versions.redo()
    with pytest.raises(Conflict):
        pending.finish(summary())
    assert len(conversation.messages()) == 2


def test_finish_compaction_raises_conflict_after_undo_of_the_previous_compaction(keeping: Store) -> None:
    conversation = keeping.open("k", messages=messages(3))
    conversation.compact(lambda _: summary())
    pending = conversation.turns.begin_compaction()
    assert pending is not None
    conversation.versions.undo()
    with pytest.raises(Conflict):
        pending.finish(summary())
    assert len(conversation.messages()) == 3


def test_load_is_consistent_if_a_change_is_undone_between_statements_of_the_load(url: str) -> None:
    """The undo restores one, two or three messages between the two statements of the load."""
    for number in (1, 2, 3):
        with Store(url, keep_removed=timedelta(days=1)) as store:
            key = f"k{number}"
            conversation = store.open(key, messages=messages(5))
            conversation.truncate(after=5 - number)
            undone: list[object] = []

            def undo(text: str, _: float, key: str = key, undone: list[object] = undone) -> None:
                if "FROM lango_session" in text and not undone:
                    undone.append(True)
                    with Store(url) as other:
                        undone.append(other.conversation(key).versions.undo())

            with Store(url, on_statement=undo) as reader:
                session = reader.get(key)
            assert len(undone) == 2
            assert session.message_count == len(session.messages) == 5
