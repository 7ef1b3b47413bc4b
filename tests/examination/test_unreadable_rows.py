"""`doctor --repair` on rows that cannot be read, and on times in another form."""

import asyncio
from pathlib import Path

import pytest
from support.commands import run
from support.damage import said
from support.factories import message, messages

from lango_store import AsyncStore, Finding, Store

NUMBER = "1" * 5_000  # more digits than Python parses


def problems(findings: list[Finding]) -> list[tuple[str, str, bool]]:
    return sorted((each.name, each.subject, each.repaired) for each in findings if each.name != "settings")


def damage(store: Store) -> None:
    """Make one row of five tables unreadable."""
    conversation = store.open("k", messages=messages(3))
    conversation.save_turn(messages(2), {"tokens": 1}, id="first")
    conversation.save_turn(messages(2), id="second")
    conversation.values.set({"a": 1, "b": 2})
    store.shared_values("app").set({"c": 3, "d": 4})
    conversation.inbox.put(message("waits"))
    conversation.inbox.put(message("damaged", id="damaged"))
    store.open("other", messages=messages(2)).inbox.put(message())
    with store.engine.begin() as connection:
        for statement in (
            "UPDATE lango_message SET role = 'weird' WHERE session_key = 'k' AND seq = 2",
            f"UPDATE lango_turn SET usage = '{NUMBER}' WHERE session_key = 'k' AND turn_no = 1",
            f"UPDATE lango_value SET value = '{NUMBER}' WHERE name = 'a'",
            f"UPDATE lango_shared_value SET value = '{NUMBER}' WHERE name = 'c'",
            f"UPDATE lango_inbox SET message = '{NUMBER}' WHERE id = 'damaged'",
        ):
            connection.exec_driver_sql(statement)


UNREADABLE = [
    ("unreadable draft, inbox, call or suspension", "k"),
    ("unreadable message", "k"),
    ("unreadable turn", "k"),
    ("unreadable value", "app"),
    ("unreadable value", "k"),
]


def test_unreadable_rows_are_deleted_only_on_request(store: Store) -> None:
    damage(store)
    findings = store.maintenance.examine(repair=True)
    assert problems(findings) == [(*each, False) for each in UNREADABLE]
    assert all("--delete-unreadable" in each.remedy for each in findings if each.name.startswith("unreadable"))
    with pytest.raises(ValueError, match="needs repair=True"):
        store.maintenance.examine(delete_unreadable=True)
    assert problems(store.maintenance.examine(repair=True, delete_unreadable=True)) == [
        (*each, True) for each in UNREADABLE
    ]
    assert problems(store.maintenance.examine()) == []
    conversation = store.conversation("k")
    assert [each.seq for each in conversation.all_messages()] == [1, 3, 4, 5, 6, 7]
    assert conversation.info().message_count == 6
    assert [each.id for each in conversation.turns.list()] == ["second"]
    assert (conversation.values.get(), store.shared_values("app").get()) == ({"b": 2}, {"d": 4})
    assert [each.content for each in conversation.inbox.list()] == ["waits"]
    assert len(store.get("other").messages) == 2
    assert conversation.append_message(message()).seq == 8


def test_unreadable_rows_are_deleted_by_async_stores(store: Store, url: str) -> None:
    damage(store)

    async def repair() -> list[Finding]:
        async with AsyncStore(url) as opened:
            return await opened.maintenance.examine(repair=True, delete_unreadable=True)

    assert problems(asyncio.run(repair())) == [(*each, True) for each in UNREADABLE]


@pytest.mark.slow
@pytest.mark.one_database
def test_doctor_deletes_unreadable_rows_on_request(store: Store, url: str) -> None:
    damage(store)
    done = run("doctor", "--repair", "--url", url)
    assert (done.returncode, done.stdout.count("--delete-unreadable")) == (1, len(UNREADABLE))
    assert run("doctor", "--delete-unreadable", "--url", url).returncode == 2
    assert run("doctor", "--repair", "--delete-unreadable", "--url", url).returncode == 0


def test_times_with_a_time_zone_are_rewritten_and_others_are_kept(damaged_file: Path) -> None:
    change = "UPDATE lango_message SET created_at = ? WHERE session_key = 'telegram:1' AND seq = ?"
    said(change, damaged_file, "2026-11-22T05:40:00+02:00", 1)
    with Store(f"sqlite:///{damaged_file}") as store:
        (finding,) = [each for each in store.maintenance.examine(repair=True) if each.name == "time in another form"]
        assert finding.repaired
        stored = store.conversation("telegram:1").all_messages()[0].created_at
        assert stored is not None
        assert stored.isoformat() == "2026-11-22T03:40:00+00:00"
        said(change, damaged_file, "2026-11-22 05:40:00", 2)
        (finding,) = [each for each in store.maintenance.examine(repair=True) if each.name == "time in another form"]
        assert (finding.repaired, "correct the others" in finding.remedy) == (False, True)
