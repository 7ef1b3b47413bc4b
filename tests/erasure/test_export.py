"""Export a person: the same rows that an erasure would erase, in a file that a person can read."""

import json
from datetime import timedelta
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from support.commands import run
from support.factories import message, messages
from support.planted import plant, plant_shared

from lango_store import Message, Store
from lango_store.tables import Base

ANN: Final = "ann"


def fill(store: Store, cold: Path) -> dict[str, Any]:
    """Store rows of a person in all places; return the arguments that reach them."""
    plant(store, "archived", ANN)
    store.create("bob's", user_id="bob", ttl=timedelta(days=1))
    store.expire(older_than=timedelta(0), archive=cold)
    plant(store, "live", ANN, expires_at=None)
    store.create("live/child", messages=messages(2))
    store.create("extra", messages=messages(1))
    plant_shared(store, "user:ann", holder="live")
    room = store.open("room", user_id="bob", messages=[message("of bob"), Message.user("of ann", author=ANN)])
    room.inbox.put(Message.user("waits", author=ANN))
    room.inbox.put(Message.user("waits", author="bob"))
    return {"archives": [cold], "scopes": ["user:ann"], "authors": True, "keys": ["extra"]}


def identified(table: sa.Table, row: dict[str, Any]) -> tuple[Any, ...]:
    return (table.name, *(row[each.name] for each in table.primary_key))


def stored(engine: sa.Engine) -> set[tuple[Any, ...]]:
    """Return the table and the primary key of each row of a database."""
    with engine.connect() as connection:
        return {
            identified(table, dict(row))
            for table in Base.metadata.tables.values()
            for row in connection.execute(sa.select(*table.primary_key)).mappings()
        }


def test_export_contains_the_rows_that_erase_erases(keeping: Store, tmp_path: Path) -> None:
    cold = tmp_path / "cold.db"
    arguments = fill(keeping, cold)
    file = BytesIO()
    counts = keeping.export_user(ANN, file, **arguments)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    exported = {
        (line["database"], *identified(Base.metadata.tables[line["table"]], line["row"]))
        for line in lines
        if line["owner"] != "room"
    }
    with Store(f"sqlite:///{cold}") as archived:
        before = stored(keeping.engine), stored(archived.engine)
        receipt = keeping.erase(ANN, **arguments)
        gone = before[0] - stored(keeping.engine), before[1] - stored(archived.engine)
    assert exported == {("store", *each) for each in gone[0]} | {("archive 1", *each) for each in gone[1]}
    elsewhere = [line for line in lines if line["owner"] == "room"]
    assert [(line["table"], line["row"].get("text")) for line in elsewhere] == [
        ("lango_message", "of ann"),
        ("lango_inbox", None),
    ]
    assert receipt.redacted == {"store": {"lango_message": 1, "lango_inbox": 1}}
    assert counts.keys() == receipt.erased.keys()
    for database, tables in counts.items():
        redacted = receipt.redacted.get(database, {})
        assert tables == {
            name: receipt.erased[database].get(name, 0) + redacted.get(name, 0)
            for name in receipt.erased[database].keys() | redacted.keys()
        }


def test_export_writes_payloads_in_their_messages(url: str) -> None:
    with Store(url, payload_threshold=10) as store:
        store.create("k", user_id=ANN, messages=[Message.user("large text " * 9), Message.user(["large part " * 9])])
        file = BytesIO()
        store.export_user(ANN, file)
    rows = [json.loads(line)["row"] for line in file.getvalue().splitlines()]
    assert [row.get("text", row.get("content")) for row in rows if "role" in row] == [
        "large text " * 9,
        ["large part " * 9],
    ]


class _Page(HTMLParser):
    """The texts of a page, and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_export_as_html_can_be_read_and_runs_nothing(store: Store, tmp_path: Path) -> None:
    arguments = fill(store, tmp_path / "cold.db")
    store.append_message("live/child", Message.user("<script>alert(1)</script> \ud83d"))
    file = BytesIO()
    counts = store.export_user(ANN, file, format="html", **arguments)
    page = _Page(file.getvalue().decode())
    assert "script" not in page.tags
    assert any("<script>alert(1)</script>" in text for text in page.texts)
    owners = {"live (store)", "live/child (store)", "archived (archive 1)", "user:ann (store)", "room (store)"}
    assert owners <= {*page.texts}
    assert file.getvalue().count(b"<table>") == sum(count for tables in counts.values() for count in tables.values())
    store.export_user(None, file := BytesIO(), keys=["extra"], format="html")
    assert b"<h1>Everything of a person</h1>" in file.getvalue()


def test_store_for_a_user_exports_only_the_sessions_of_the_user(store: Store) -> None:
    for key, user in (("a", ANN), ("a/other", "bob"), ("b", "bob")):
        store.create(key, user_id=user)
    assert store.for_user(ANN).export_user(None, BytesIO(), keys=["b"]) == {"store": {"lango_session": 1}}
    with pytest.raises(ValueError, match="for user"):
        store.for_user(ANN).export_user("bob", BytesIO())


@pytest.mark.slow
def test_export_command_writes_one_file(url: str, tmp_path: Path) -> None:
    with Store(url) as store:
        store.create("a", user_id=ANN, messages=messages(2))
    page, lines = tmp_path / "ann.html", tmp_path / "ann.jsonl"
    for file in (page, lines):
        done = run("export", "--user", ANN, "--everything", "--to", str(file), "--url", url)
        assert (done.returncode, done.stdout) == (0, "exported from store: 2 lango_message, 1 lango_session\n")
    assert page.read_text().startswith("<!doctype html>")
    assert len(lines.read_text().splitlines()) == 3
    assert page.stat().st_mode & 0o777 == 0o600
    for words in (("--everything", "--all"), ("--user", ANN, "--scope", "user:ann")):
        assert run("export", *words, "--to", "x", "--url", url).returncode == 2
    assert run("export", "--everything", "--user", ANN, "--to", "-", "--url", url).returncode == 2
