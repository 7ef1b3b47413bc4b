"""Values in backups and copies, and in the findings of `examine`."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.backup_lines import sealed
from support.databases import MakeDatabase, not_on_a_cluster
from support.factories import messages
from support.rows import SharedValueRowFactory, all_fields, fill, put, shared_fields, shared_rows, value_names

from lango_store import DamagedMessage, Store
from lango_store._operations import paging
from lango_store.interchange import export, import_path
from lango_store.interchange.copying import copy

VALUES: dict[str, Any] = {"a": None, "b": "a\0\ud83d", "c": {"deep": [1, 2.5]}}


def problems(store: Store) -> list[tuple[str, str]]:
    return [(each.name, each.subject) for each in store.maintenance.examine() if each.name != "settings"]


def export_backup(store: Store, folder: Path, **selection: Any) -> Path:
    path = folder / "all.jsonl"
    reports = export(store, path, "backup", replace=True, **(selection or {"everything": True}))
    assert [each.error for each in reports if each.error] == []
    return path


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store(url) as opened:
        yield opened


@pytest.fixture
def other(make_database: MakeDatabase) -> Iterator[Store]:
    with Store(make_database()) as opened:
        yield opened


@pytest.mark.slow
def test_backup_of_everything_holds_every_value(store: Store, other: Store, tmp_path: Path) -> None:
    fill(store)
    store.create("k", messages=messages(2))
    store.conversation("k").values.set(VALUES)
    store.shared_values("user:ann").set(VALUES)
    path = export_backup(store, tmp_path)
    (report,) = import_path(other, path)
    assert (report.error, report.skipped) == (None, [])
    assert report.values == len(shared_rows(store))
    assert (all_fields(other), shared_fields(other)) == (all_fields(store), shared_fields(store))
    assert (other.conversation("k").values.get(), other.shared_values("user:ann").get()) == (VALUES, VALUES)
    assert export_backup(other, tmp_path).read_bytes() == path.read_bytes()
    (again,) = import_path(other, path)
    assert (again.keys, again.values, again.skipped, again.collided) == ([], 0, [], [])


def test_shared_values_are_read_in_order_across_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "ROWS", 2)
    scopes_and_names = [("a", "y"), ("b", "a"), ("a", "x"), ("b", "z"), ("a", "z")]
    put(store, *(SharedValueRowFactory(scope=scope, name=name) for scope, name in scopes_and_names))
    assert [(row["scope"], row["name"]) for row in shared_rows(store)] == sorted(scopes_and_names)


def test_backup_of_sessions_holds_their_values_but_no_shared_values(store: Store, other: Store, tmp_path: Path) -> None:
    for key in ("k", "l"):
        store.create(key, user_id="ann")
        store.conversation(key).values.set(VALUES)
    store.shared_values("k").set(VALUES)
    (report,) = import_path(other, export_backup(store, tmp_path, keys=["k"]))
    assert (report.keys, report.values) == (["k"], 0)
    assert (other.conversation("k").values.get(), other.shared_values("k").get()) == (VALUES, {})


def test_import_keeps_existing_shared_values(store: Store, other: Store, tmp_path: Path) -> None:
    store.shared_values("mine").set({"differs": 1, "new": 1})
    other.shared_values("mine").set({"differs": 2})
    path = export_backup(store, tmp_path)
    (preview,) = import_path(other, path, dry_run=True)
    assert other.shared_values("mine").get() == {"differs": 2}
    (report,) = import_path(other, path)
    for each in (preview, report):
        assert (each.error, each.values) == (None, 1)
        assert [skipped.reason.split(":")[0] for skipped in each.skipped] == ["value 'differs' of scope 'mine'"]
    assert other.shared_values("mine").get() == {"differs": 2, "new": 1}


INVALID_LINES = {
    "no name": ('"name":"a"', '"name":""', "name"),
    "too long name": ('"name":"a"', f'"name":"{"x" * 513}"', "name"),
    "value that is not JSON": ('"value":null', '"value":NaN', "NaN is not JSON"),
    "no value": (',"value":null', "", "value"),
    "no time": ("+00:00", "", "updated_at"),
}


@pytest.mark.parametrize(("old", "new", "expected"), INVALID_LINES.values(), ids=list(INVALID_LINES))
def test_invalid_value_in_backup_is_refused_with_its_line_number(
    store: Store, other: Store, tmp_path: Path, old: str, new: str, expected: str
) -> None:
    store.create("k")
    store.conversation("k").values.set({"a": None})
    path = export_backup(store, tmp_path)
    lines = path.read_text().splitlines()
    (index,) = (n for n, line in enumerate(lines) if line.startswith('{"value"'))
    lines[index] = lines[index].replace(old, new)
    path.write_text("\n".join(sealed(lines)) + "\n")
    (report,) = import_path(other, path)
    assert report.error is not None
    assert f"line {index + 1}: " in report.error
    assert expected in report.error
    assert not list(other.iter_sessions())


@pytest.mark.parametrize("change", ["changed value", "missing line", "missing closing line", "wrong count"])
def test_damaged_shared_values_in_backup_are_refused(store: Store, other: Store, tmp_path: Path, change: str) -> None:
    store.shared_values("s").set({"a": 1, "b": 2})
    path = export_backup(store, tmp_path)
    _, first, second, closing, last = lines = path.read_text().splitlines()
    assert json.loads(closing)["shared"]["values"] == 2
    lines[1:] = {
        "changed value": [first.replace('"value":1', '"value":3'), second, closing, last],
        "missing line": [first, closing, last],
        "missing closing line": [first, second, last],
        "wrong count": [first, second, closing.replace('"values":2', '"values":3'), last],
    }[change]
    path.write_text("\n".join(lines) + "\n")
    (report,) = import_path(other, path)
    assert report.error is not None
    assert "shared values are damaged" in report.error
    assert other.shared_values("s").get() == {}


def damage_shared_value(store: Store, column: str, value: str) -> None:
    """Create a scope with three shared values and damage the value `b`."""
    store.shared_values("s").set({"a": 1, "b": 2, "c": 3})
    with store.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE lango_shared_value SET {column} = '{value}' WHERE name = 'b'")


def test_damaged_shared_value_is_reported_and_left_out_of_a_backup(store: Store, other: Store, tmp_path: Path) -> None:
    damage_shared_value(store, "value", "[" * 300 + "]" * 300)
    store.create("k", messages=messages(2))
    reports = list(export(store, tmp_path / "all.jsonl", "backup", everything=True))
    assert [(each.key, each.error is None) for each in reports] == [("k", True), ("s", False)]
    assert "value 'b', value: list has more than" in str(reports[1].error)
    (report,) = import_path(other, tmp_path / "all.jsonl")
    assert (report.keys, report.values, report.error) == (["k"], 2, None)
    assert other.shared_values("s").get() == {"a": 1, "c": 3}


def test_export_and_copy_report_and_leave_out_a_shared_value_with_invalid_time(
    make_sqlite: MakeDatabase, tmp_path: Path
) -> None:
    with Store(make_sqlite()) as store, Store(make_sqlite()) as other:
        damage_shared_value(store, "updated_at", "never")
        (exported,) = export(store, tmp_path / "all.jsonl", "backup", everything=True)
        report = copy(store, other)
        assert (report.values, [each.key for each in report.failed]) == (2, ["s"])
        for reason in str(exported.error), report.failed[0].reason:
            assert "value 'b', updated_at: " in reason
        assert other.shared_values("s").get() == {"a": 1, "c": 3}


@pytest.mark.slow
def test_copy_transfers_every_value(store: Store, other: Store) -> None:
    fill(store)
    store.create("k")
    store.conversation("k").values.set(VALUES)
    preview = copy(store, other, dry_run=True)
    assert shared_rows(other) == []
    report = copy(store, other)
    assert report.complete
    assert (report.values, preview.values) == (len(shared_rows(store)),) * 2
    assert (all_fields(other), shared_fields(other)) == (all_fields(store), shared_fields(store))
    assert copy(store, other).values == 0


def test_copy_reports_and_does_not_overwrite_values_that_differ(store: Store, other: Store) -> None:
    store.create("k")
    store.conversation("k").values.set({"a": 1})
    store.shared_values("mine").set({"a": 1, "b": 1})
    other.shared_values("mine").set({"a": 2})
    copy(store, other)
    other.conversation("k").values.set({"a": 2})
    report = copy(store, other)
    assert report.differing == ["k"]
    assert report.differing_values == [("mine", "a")]
    assert not report.complete
    assert other.shared_values("mine").get() == {"a": 2, "b": 1}


# Examination


def execute_unchecked(store: Store, statement: str) -> None:
    """Run a statement without constraint checks, on a separate connection."""
    engine = store.engine
    with contextlib.closing(engine.raw_connection()) as connection:
        driver: Any = connection.driver_connection
        if engine.dialect.name == "sqlite":
            driver.execute("PRAGMA foreign_keys = OFF")
        else:
            driver.execute("ALTER TABLE lango_value DISABLE TRIGGER ALL")
        driver.execute(statement)
        if engine.dialect.name != "sqlite":
            driver.execute("ALTER TABLE lango_value ENABLE TRIGGER ALL")
        driver.commit()
        connection.invalidate()


@pytest.mark.slow
@not_on_a_cluster("a cluster can neither bypass a foreign key nor move rows to another session")
def test_examine_with_repair_deletes_values_without_a_session(store: Store) -> None:
    store.create("k")
    store.conversation("k").values.set({"a": 1})
    execute_unchecked(store, "UPDATE lango_value SET session_key = 'gone'")
    assert problems(store) == [("orphans", "lango_value")]
    store.maintenance.examine(repair=True)
    assert problems(store) == []
    assert value_names(store) == []


@pytest.mark.slow
@not_on_a_cluster("a cluster can neither bypass a foreign key nor move rows to another session")
def test_examine_reports_a_damaged_value(store: Store) -> None:
    store.create("k")
    store.conversation("k").values.set({"a": 1, "b": 2})
    store.shared_values("shared").set({"a": 1})
    execute_unchecked(store, "UPDATE lango_shared_value SET name = ''")
    expected = [("unreadable value", "shared")]
    if store.engine.dialect.name == "sqlite":  # PostgreSQL's json type accepts only valid JSON
        execute_unchecked(store, "UPDATE lango_value SET value = '{no json' WHERE name = 'a'")
        expected.insert(0, ("unreadable value", "k"))
        with pytest.raises(DamagedMessage, match="value 'a'") as raised:
            store.conversation("k").values.get()
        assert (raised.value.key, raised.value.seq) == ("k", 0)
        assert store.conversation("k").values.get("b") == {"b": 2}
    assert problems(store) == expected
    store.conversation("k").values.set({"a": 1})
    assert store.conversation("k").values.get() == {"a": 1, "b": 2}


@pytest.mark.slow
def test_examine_reports_a_shared_value_whose_time_has_another_format(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        store.shared_values("shared").set({"a": 1})
        with store.engine.begin() as connection:
            connection.execute(sa.text("UPDATE lango_shared_value SET updated_at = '2026-11-21 12:00:00+00:00'"))
        assert problems(store) == [("time in another form", "shared")]
