"""`turns`, `calls`, `suspensions` and `owed`: four lists with the same rules."""

import asyncio
import csv
import io
import json
import operator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.commands import run
from support.factories import message

from lango_store import AsyncStore, InvalidCursor, Message, Store, ToolCall, WorkFilters

LISTS = ("turns", "calls", "suspensions", "owed")
SESSIONS = {"chat:1": ("ann", "support"), "chat:2": ("ann", "sales"), "mail:3": ("bob", "support")}


@pytest.fixture
def busy(url: str) -> str:
    """Return the URL of a store with sessions that are in all four lists."""
    with Store(url, clock=lambda: datetime.now(UTC) - timedelta(hours=1)) as store:
        for key, (user, agent) in SESSIONS.items():
            conversation = store.open(key, user_id=user, agent_id=agent)
            asking = conversation.append_message(Message.assistant(tool_calls=[ToolCall(id="c", name="pay")]))
            conversation.calls.begin(asking.seq, 0)
            conversation.suspensions.create()
            conversation.turn("t1").begin()
            conversation.inbox.put(message())
    return url


@pytest.mark.slow
@pytest.mark.one_database
@pytest.mark.parametrize("command", LISTS)
def test_list_of_work_takes_the_same_filters_as_the_others(busy: str, command: str) -> None:
    for options, expected in {
        (): {"chat:1", "chat:2", "mail:3"},
        ("--user", "ann"): {"chat:1", "chat:2"},
        ("--agent", "support"): {"chat:1", "mail:3"},
        ("--prefix", "chat:"): {"chat:1", "chat:2"},
        ("--user", "ann", "--agent", "support", "--prefix", "chat"): {"chat:1"},
        ("--user", "nobody"): set(),
    }.items():
        done = run(command, *options, "--json", "--url", busy)
        assert (done.returncode, done.stderr) == (0, "")
        assert {json.loads(line)["key"] for line in done.stdout.splitlines()} == expected


WHICH: WorkFilters = {"user_id": "ann", "agent_id": "support", "key_prefix": "chat"}


def test_lists_of_work_are_filtered(busy: str) -> None:
    with Store(busy) as store:
        assert [each.key for each in store.turns.list_in_progress(**WHICH).items] == ["chat:1"]
        assert [each.key for each in store.calls.list_unknown(**WHICH).items] == ["chat:1"]
        assert [each.key for each in store.suspensions.list(**WHICH).items] == ["chat:1"]
        assert [each.key for each in store.owed(**WHICH).items] == ["chat:1"]
        pages = store.turns.list_in_progress(), store.calls.list_unknown(), store.owed()
        assert [len(page.items) for page in pages] == [3, 3, 3]


def test_lists_of_work_are_filtered_by_async_stores(busy: str) -> None:
    async def read() -> list[list[str]]:
        async with AsyncStore(busy) as store:
            pages = await store.suspensions.list(**WHICH), await store.owed(**WHICH)
            lists = (await store.turns.list_in_progress(**WHICH)).items, (await store.calls.list_unknown(**WHICH)).items
        return [[each.key for each in items] for items in (*lists, *(page.items for page in pages))]

    assert asyncio.run(read()) == [["chat:1"]] * 4


@pytest.mark.one_database
def test_list_of_work_refuses_an_unknown_filter(store: Store) -> None:
    which: Any = {"title": "a"}
    for call in (store.turns.list_in_progress, store.calls.list_unknown, store.suspensions.list):
        with pytest.raises(TypeError, match=r"title.*give agent_id, user_id, key_prefix"):
            call(**which)


@pytest.mark.parametrize("name", ["turns.list_in_progress", "calls.list_unknown", "owed"])
def test_pages_of_work_have_each_session_once(busy: str, name: str) -> None:
    with Store(busy) as store:
        method = operator.attrgetter(name)(store)
        keys, cursor = [], None
        for _ in range(3):
            page = method(limit=1, cursor=cursor)
            keys += [each.key for each in page.items]
            cursor = page.next
        assert cursor is None
        assert keys == [each.key for each in method().items]
        assert len({*keys}) == 3
        with pytest.raises(InvalidCursor, match="unchanged"):
            method(cursor="other")


@pytest.mark.one_database
@pytest.mark.parametrize("command", [*LISTS, "shares", "sessions list", "sessions changes chat:1"])
def test_list_as_csv_has_a_header_and_the_fields_of_a_pipe(busy: str, command: str) -> None:
    with Store(busy) as store:
        formula = store.open("=cmd(1)", title='a "title",\nof two lines', user_id="eve")
        formula.inbox.put(message())
        store.conversation("chat:1").share()
        store.conversation("chat:1").clear()
    header, *rows = csv.reader(io.StringIO(run(*command.split(), "--csv", "--url", busy).stdout))
    lines = [line.split("\t") for line in run(*command.split(), "--url", busy).stdout.splitlines()]
    assert len(rows) == len(lines) > 0
    assert {len(header)} == {len(row) for row in rows}
    for row, line in zip(rows, lines, strict=True):
        plain = [value.removeprefix("'").replace("\n", "\\n") for value in row]
        assert plain[: len(line)] == line
    if command == "sessions list":
        assert ["'=cmd(1)", 'a "title",\nof two lines'] in [row[:2] for row in rows]
        assert header[-1] == "hold"


@pytest.mark.one_database
def test_empty_list_as_csv_is_a_header(url: str) -> None:
    done = run("owed", "--csv", "--url", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert next(csv.reader([done.stdout]))[:2] == ["key", "reason"]
