"""`examine` on turns and compactions: it finds and repairs inconsistent rows."""

import pytest
from support.factories import message, messages

from lango_store import Finding, Store, create_engine

pytestmark = pytest.mark.slow


@pytest.fixture
def talked(store: Store) -> Store:
    """Two equal sessions: a turn, a compaction, a turn without messages, a second compaction, a turn."""
    for key in ("k", "whole"):
        conversation = store.open(key)
        conversation.save_turn(messages(2, tokens=1), {"tokens": 1})
        conversation.compact(lambda window: [message("first summary")])
        conversation.save_turn([], {"tokens": 2})
        conversation.append_message(message("between"))
        conversation.compact(lambda window: [message("second summary")])
        conversation.save_turn(messages(2))
    return store


def spoil(url: str, *statements: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def findings(store: Store, *, repair: bool = False) -> list[Finding]:
    return [finding for finding in store.maintenance.examine(repair=repair) if finding.name != "settings"]


def test_doctor_finds_nothing_in_sound_turns(talked: Store) -> None:
    talked.open("k").fork("fork", upto=4)
    talked.open("k").fork("whole fork")
    talked.open("fork").pop_message()
    talked.conversation("whole").clear(keep_system=True)
    assert findings(talked) == []


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ("turn_count = 9", "turn_count is 9, its rows say 5"),
        ("last_turn_no = 2", "last_turn_no is 2, its rows say 5"),
        ("summary_turn = 1", "summary_turn is 1, its rows say 4"),
        (
            "summary_turn = NULL, summarized_upto = 0",
            "summary_turn is None, its rows say 4; summarized_upto is 0, its rows say 5",
        ),
        ("summarized_upto = 7", "summarized_upto is 7, its rows say 5"),
    ],
)
def test_doctor_repairs_turn_counters_that_disagree_with_the_stored_turns(
    talked: Store, url: str, change: str, detail: str
) -> None:
    before, turns = talked.get("k"), talked.open("k").turns.list()
    spoil(url, f"UPDATE lango_session SET {change} WHERE key = 'k'")
    assert [(f.name, f.subject, f.detail) for f in findings(talked)] == [
        ("wrong counters", "k", f"session 'k': {detail}")
    ]
    assert [f.repaired for f in findings(talked, repair=True)] == [True]
    assert findings(talked) == []
    mended = talked.get("k")
    assert mended == before.model_copy(update={"revision": mended.revision})
    assert talked.open("k").save_turn([]).turn_no == turns[-1].turn_no + 1


@pytest.mark.parametrize("change", ["usage = '[1]'", "metadata = '1'", "kind = 'other'"])
def test_doctor_names_unreadable_turn(talked: Store, url: str, change: str) -> None:
    spoil(url, f"UPDATE lango_turn SET {change} WHERE session_key = 'k' AND turn_no = 1")
    (found,) = findings(talked, repair=True)
    assert (found.name, found.subject, found.repaired) == ("unreadable turn", "k", False)
    assert "turn 1" in found.detail


def test_doctor_resets_summarized_upto_if_there_is_no_compaction(store: Store, url: str) -> None:
    store.create("k", messages=[message() for _ in range(3)])
    spoil(url, "UPDATE lango_session SET summarized_upto = 2")
    assert [(f.name, f.subject) for f in findings(store)] == [("wrong counters", "k")]
    findings(store, repair=True)
    assert findings(store) == []
    assert store.conversation("k").info().summarized_upto == 0


def test_doctor_makes_the_previous_compaction_current_if_the_last_one_is_missing(talked: Store, url: str) -> None:
    spoil(url, "DELETE FROM lango_turn WHERE session_key = 'k' AND turn_no = 4")
    assert [f.name for f in findings(talked)] == ["wrong counters", "misplaced message"]
    findings(talked, repair=True)
    assert findings(talked) == []
    info = talked.conversation("k").info()
    assert (info.turn_count, info.summary_turn, info.summarized_upto) == (4, 2, 2)
    assert talked.conversation("k").messages()[0].content == "first summary"


def test_doctor_makes_whole_log_the_window_if_all_turns_are_missing(talked: Store, url: str) -> None:
    spoil(url, "DELETE FROM lango_turn WHERE session_key = 'k'")
    findings(talked, repair=True)
    assert findings(talked) == []
    assert talked.conversation("k").messages() == talked.conversation("k").all_messages()
    assert talked.open("k").save_turn([]).turn_no == 6


def test_doctor_repairs_last_seq_below_seqs_of_turns(talked: Store, url: str) -> None:
    last_seq = talked.conversation("k").info().last_seq
    spoil(
        url,
        f"DELETE FROM lango_message WHERE session_key = 'k' AND seq = {last_seq}",
        f"UPDATE lango_session SET last_seq = {last_seq - 1} WHERE key = 'k'",
    )
    (found,) = findings(talked)
    assert f"last_seq is {last_seq - 1}, its rows say {last_seq}" in found.detail
    findings(talked, repair=True)
    assert findings(talked) == []
    assert talked.append_message("k", message()).seq == last_seq + 1


@pytest.mark.parametrize("change", ["DELETE FROM lango_turn", "UPDATE lango_turn SET last_seq = 1"])
def test_doctor_removes_messages_from_a_turn_that_does_not_contain_them(store: Store, url: str, change: str) -> None:
    stored = store.open("k").save_turn(messages(2))
    spoil(url, change)
    (found,) = [each for each in findings(store) if each.name == "misplaced message"]
    assert (found.subject, "name a turn that does not contain them" in found.detail) == ("k", True)
    findings(store, repair=True)
    assert findings(store) == []
    assert store.conversation("k").messages()[1].turn_no is None
    assert store.conversation("k").messages()[1].content == stored.messages[1].content
