"""Backups with valid digests and invalid rows: rows are checked before they are stored."""

import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.backup_lines import sealed
from support.databases import MakeDatabase
from support.factories import message, messages
from support.paths import DATA
from support.session_checks import assert_sound

from lango_store import SessionExpired, Store
from lango_store._operations.session.sessions import MAX_TTL
from lango_store.interchange import export, import_path
from lango_store.interchange.backup_reading import load
from lango_store.interchange.backup_writing import first_line, last_line, session_lines
from lango_store.tables import SCHEMA_REVISION

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
BACKUPS = DATA / "backups"
BACKUP = (BACKUPS / f"{SCHEMA_REVISION}.jsonl").read_text().splitlines()
KINDS = tuple(
    f'{{"{kind}"'
    for kind in ("session", "turn", "message", "payload", "change", "draft", "inbox_message", "call", "suspension")
)
ROWS = [number for number, line in enumerate(BACKUP) if line.startswith(KINDS)]


@pytest.fixture
def target(make_database: MakeDatabase) -> Iterator[Store]:
    with Store(make_database(), clock=lambda: NOW) as opened:
        yield opened


def crafted(number: int, **fields: Any) -> list[str]:
    """Return a backup with changed fields in one row and correct digests."""
    ((kind, row),) = json.loads(BACKUP[number]).items()
    changed = {name: value for name, value in (row | fields).items() if value is not Ellipsis}
    line = json.dumps({kind: changed}, separators=(",", ":"))
    return sealed([*BACKUP[:number], line, *BACKUP[number + 1 :]])


def landed(store: Store, lines: list[str], path: Path) -> bool:
    """Import a file and return whether it was accepted. A refused file must change nothing and name a line."""
    path.write_text("\n".join(lines))
    (report,) = import_path(store, path)
    if report.error is not None:
        assert "line " in report.error
        assert store.count(expired=None) == 0
        return False
    return True


def every_method_works(store: Store) -> None:
    assert_sound(store)
    store.stats()
    store.list_sessions(expired=None)
    for info in store.iter_sessions(expired=None):
        try:
            conversation = store.open(info.key)
        except SessionExpired:
            store.touch(info.key, ttl=None)
            conversation = store.open(info.key)
        assert (
            len(conversation.all_messages())
            == info.message_count + info.record_count
            == len(list(conversation.iter_messages()))
        )
        assert conversation.get().messages == conversation.messages()
        conversation.history(last=2)
        conversation.history(from_consolidated=True)
        conversation.messages(last=1)
        assert len(conversation.turns.list()) == conversation.info().turn_count
        conversation.total_usage()
        conversation.turns.list_compactions()
        conversation.update(title="new")
        assert conversation.append_message(message("next")).seq > info.last_seq
        conversation.save_turn(messages(2), {"tokens": 1})
        conversation.compact(lambda window: [message("summary")])
        waiting = [each for each in conversation.inbox.list() if each.due_at is None or each.due_at <= NOW]
        drafts = conversation.drafts.list()
        with conversation.turn() as turn:
            turn.write("half of an ans")
            taken = {each.id for each in waiting if each.role != "tool"}  # results need their suspensions
            assert taken <= {each.id for each in turn.take_inbox()} | {None}
        assert [conversation.drafts.keep(draft.id).content for draft in drafts] == [draft.text for draft in drafts]
        store.touch(info.key)
    assert_sound(store)


DIGEST = json.loads(next(line for line in BACKUP if line.startswith('{"payload"')))["payload"]["digest"]
PLACE = [DIGEST, 110]
odd_values: st.SearchStrategy[Any] = st.sampled_from(
    [
        ..., None, True, False, 0, 1, 2, 3, -1, 1.5, 1e300, math.inf, math.nan, 2**53, 2**62, 2**63 - 1, 2**63, 2**70,
        "", "x", "5", "\0", "\ud800", "user", "compaction", "turn", "plain", "yesterday", "2026-11-21",
        "2026-11-21T12:00:00", "2026-11-21T12:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00",
        "y" * 600, [], {}, [1], {"a": 1}, {"a": {"b": [None]}}, [{}], [{"id": "c", "name": "n"}], [[[[]]]],
        [{"id": 1, "name": None}], {"original_message_count": "x"}, {"discarded": 7},
        {"text": PLACE}, {"text": {"0": PLACE}}, {"content": PLACE}, {"content": {"0": PLACE}}, {"role": PLACE},
        {"seq": PLACE}, {"extra": PLACE}, {"author": PLACE}, {"tool_calls": {"0": {"name": PLACE}}}, {"text": ["x", 1]},
        {"text": [DIGEST]}, {"text": [DIGEST, "9"]}, {"text": [DIGEST, 9, 9]}, {"content": {"-1": {"text": PLACE}}},
    ]
)  # fmt: skip
names_by_row = {number: sorted(next(iter(json.loads(BACKUP[number]).values()))) for number in ROWS}
absent = ["turn_no", "summary_turn", "replaced_upto", "usage", "metadata", "tool_calls", "extra", "settings", "id"]
places = st.sampled_from(ROWS).flatmap(
    lambda number: st.tuples(st.just(number), st.sampled_from([*names_by_row[number], *absent]))
)


@pytest.mark.slow
@given(place=places, value=odd_values)
@example(place=(ROWS[0], "last_seq"), value="many")
@example(place=(ROWS[0], "last_seq"), value=2**70)
@example(place=(ROWS[0], "settings"), value=[1])
@example(place=(ROWS[0], "created_at"), value="0001-01-01T00:00:00+14:00")
def test_backup_with_a_changed_field_is_refused_or_readable_by_every_method(
    target: Store, tmp_path: Path, place: tuple[int, str], value: Any
) -> None:
    number, name = place
    if landed(target, crafted(number, **{name: value}), tmp_path / "crafted.jsonl"):
        every_method_works(target)
    for info in list(target.iter_sessions(expired=None)):
        target.conversation(info.key).update(hold=None)
        target.delete(info.key)


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        ("session", {"last_seq": "x"}, "last_seq"),
        ("session", {"settings": [1]}, "settings: "),
        ("session", {"metadata": [1]}, "metadata: "),
        ("session", {"tools": {}}, "tools: "),
        ("session", {"expires_at": "yesterday"}, "expires_at"),
        ("session", {"message_count": 7}, "message_count"),
        ("session", {"last_consolidated": 99}, "last_consolidated: is 99"),
        ("session", {"summarized_upto": 99}, "summarized_upto: is 99"),
        ("session", {"ttl_seconds": -1}, "ttl_seconds"),
        ("session", {"ttl_seconds": 36_526 * 86_400}, "ttl_seconds"),
        ("session", {"last_seq": 2**62}, "last_seq"),
        ("session", {"last_seq": 1}, "last_seq: is 1, and the rows of the session say "),
        ("session", {"ttl_seconds": 0}, "ttl_seconds"),
        ("session", {"ttl_seconds": "5"}, "ttl_seconds"),
        ("session", {"title": "a\0b"}, "title: holds a NUL"),
        ("session", {"key": 7}, "key: "),
        ("message", {"seq": 0}, "seq: 0 is not a number"),
        ("message", {"id": "y" * 600}, "id"),
        ("message", {"role": "nobody"}, "role"),
        ("message", {"tool_calls": [{"id": 1}]}, "tool_calls"),
        (
            "message",
            {"created_at": "2026-11-21T12:00:00"},
            "is not a time with a time zone",
        ),
        ("message", {"turn_no": 99}, "turn_no: message 1 names a turn that does not contain it"),
        ("turn", {"kind": "song"}, "kind"),
        ("turn", {"turn_no": 0}, "turn_no: 0 is not a number"),
        ("turn", {"first_seq": 0}, "first_seq: is 0"),
        ("turn", {"first_seq": 4}, "first_seq: is 4, and last_seq is 2"),
        ("turn", {"usage": [1]}, "usage"),
        ("compaction", {"metadata": {"original_message_count": "many"}}, "replaced_messages"),
        ("compaction", {"metadata": {"discarded": 7}}, "discarded"),
        ("session", {"record_count": 7}, "record_count: is 7, and the rows of the session say"),
        ("value", {"updated_at": "0001-01-01T00:00:00+14:00"}, "updated_at"),
        ("value", {"value": ...}, "value"),
        ("message of payloads", {"payloads": {"text": ["x", 1]}}, "payloads: 1 are missing, such as x"),
        ("message of payloads", {"payloads": {"author": PLACE}}, "payloads: does not match the message"),
        ("message of payloads", {"author": "", "payloads": {"author": PLACE}}, "author has no payloads"),
        ("message of payloads", {"content": "x"}, "payloads: does not match the message"),
        ("payload", {"body": "x"}, "body: does not match its digest"),
        ("payload", {"digest": "x"}, "body: does not match its digest"),
        ("payload", {"body": None}, "body"),
        ("change", {"seq": 0}, "seq: 0 is not a number"),
        ("change", {"seq": 99}, "seq: 6 follows 99"),
        ("change", {"kind": 5}, "kind: is int, not text"),
        ("change", {"after_seq": ...}, "after_seq: is missing"),
        ("draft", {"piece": 5}, "piece: 5 is not text"),
        ("draft", {"piece": ...}, "piece: is missing"),
        ("draft", {"n": 0}, "n: 0 is not a number"),
        ("draft", {"token": -1}, "token: -1 is not a number"),
        ("draft", {"token": 2**62}, "token"),
        ("draft", {"turn_id": None}, "turn_id"),
        ("draft", {"written_at": "yesterday"}, "written_at"),
        ("inbox_message", {"n": 2**62}, "n: "),
        ("inbox_message", {"role": "nobody"}, "role"),
        ("inbox_message", {"id": "y" * 600}, "id"),
        ("inbox_message", {"created_at": ...}, "created_at: is missing"),
        ("call", {"message_seq": 0}, "message_seq: 0 is not a number"),
        ("call", {"position": -1}, "position: -1 is not a number"),
        ("call", {"effect_key": "y" * 600}, "id: has 600 bytes"),
        ("call", {"until": ...}, "until: is missing"),
        ("call", {"result_seq": 0}, "result_seq: 0 is not a number"),
        ("suspension", {"digest": ""}, "id: has 0 bytes"),
        ("suspension", {"positions": ["0"]}, "positions: ['0'] is not a list of positions"),
        ("suspension", {"positions": 0}, "positions: 0 is not a list of positions"),
        ("suspension", {"reason": "a\0b"}, "reason: holds a NUL"),
        ("suspension", {"due_at": "tomorrow"}, "due_at"),
        ("value", {"name": "y" * 600}, "name: has 600 characters"),
        ("shared_value", {"scope": "😀" * 200, "name": "😀" * 500}, "have 2,800 bytes together"),
    ],
)
def test_error_for_a_refused_row_names_the_line_and_the_field(
    target: Store, tmp_path: Path, kind: str, fields: dict[str, Any], said: str
) -> None:
    begins, contains = {
        "compaction": ('{"turn"', '"compaction"'),
        "message of payloads": ('{"message"', '"payloads":{"text"'),
    }.get(kind, (f'{{"{kind}"', ""))
    number = next(number for number, line in enumerate(BACKUP) if line.startswith(begins) and contains in line)
    path = tmp_path / "crafted.jsonl"
    path.write_text("\n".join(crafted(number, **fields)))
    for dry_run in (True, False):
        (report,) = import_path(target, path, dry_run=dry_run)
        assert said in str(report.error)
        assert "line " in str(report.error)
        assert "nothing of this file was imported" in str(report.error)
    assert target.count(expired=None) == 0


@pytest.mark.parametrize(
    ("kind", "second", "said"),
    [
        ("draft", {"n": 1}, "n: 1 follows 1"),
        ("inbox_message", {"n": 1, "id": "m-3"}, "n: 1 follows 1"),
        ("inbox_message", {"n": 2}, "id: 'm-2' occurs twice"),
    ],
)
def test_duplicate_row_of_draft_or_inbox_is_refused(
    target: Store, tmp_path: Path, kind: str, second: dict[str, Any], said: str
) -> None:
    number = next(number for number in ROWS if BACKUP[number].startswith(f'{{"{kind}"'))
    (row,) = json.loads(BACKUP[number]).values()
    path = tmp_path / "crafted.jsonl"
    for fields, expected in ((second, said), ({"n": 2, "id": "m-3"} if "id" in row else {"n": 2}, None)):
        line = json.dumps({kind: row | fields})
        path.write_text("\n".join(sealed([*BACKUP[: number + 1], line, *BACKUP[number + 1 :]])))
        (report,) = import_path(target, path)
        assert report.error is None if expected is None else expected in str(report.error)


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ('"settings":{"far":[1e999]}', "1e999 is too large a number"),
        ('"settings":{"far":{"a":1,"a":1}}', "an object has a name twice"),
        ('"key":"another"', "an object has a name twice"),
    ],
)
def test_backup_with_a_too_large_number_or_a_duplicate_name_in_an_object_is_refused(
    target: Store, tmp_path: Path, member: str, said: str
) -> None:
    number, path = ROWS[0], tmp_path / "crafted.jsonl"
    changed = BACKUP[number].replace('{"session":{', f'{{"session":{{{member},')
    path.write_text("\n".join(sealed([*BACKUP[:number], changed, *BACKUP[number + 1 :]])))
    (report,) = import_path(target, path)
    assert f"line {number + 1}: {said}" in str(report.error)
    assert target.count(expired=None) == 0


@pytest.mark.slow
def test_import_accepts_the_longest_ttl_and_any_iso_8601_form_of_a_time(target: Store, tmp_path: Path) -> None:
    longest, written = MAX_TTL.total_seconds(), "20261121T130000,5+0100"
    lines = crafted(ROWS[0], ttl_seconds=longest, expires_at="9999-12-31T00:00:00Z")
    kinds = '{"session"', '{"turn"', '{"message"'
    lines = [
        re.sub(r'"created_at":"[^"]*"', f'"created_at":"{written}"', x) if x.startswith(kinds) else x for x in lines
    ]
    assert landed(target, sealed(lines), tmp_path / "crafted.jsonl")
    infos = list(target.iter_sessions(expired=None))
    assert longest in [info.ttl_seconds for info in infos]
    moments = [info.created_at for info in infos]
    moments += [turn.created_at for turn in target.conversation("turns").turns.list()]
    moments += [each.created_at for each in target.conversation("turns").all_messages() if each.created_at]
    assert {*moments} == {datetime(2026, 11, 21, 12, 0, 0, 500_000, tzinfo=UTC)}
    every_method_works(target)


def test_last_compaction_stays_current_if_turn_lines_of_a_backup_are_swapped(target: Store, tmp_path: Path) -> None:
    conversation = target.open("k", messages=messages(9))
    for _ in range(3):
        conversation.compact(lambda _: [message("summary")])
        conversation.append_message(message())
    conversation.save_turn([message()], {}, metadata={"original_message_count": "many", "discarded": 7})
    before = conversation.messages(), conversation.turns.list()
    export(target, tmp_path / "k.jsonl", "backup", everything=True)
    target.delete("k")
    lines = (tmp_path / "k.jsonl").read_text().splitlines()
    _, second, third, _ = (number for number, line in enumerate(lines) if line.startswith('{"turn"'))
    lines[second], lines[third] = lines[third], lines[second]
    assert landed(target, sealed(lines), tmp_path / "again.jsonl")
    assert (conversation.messages(), conversation.turns.list()) == before


@pytest.mark.slow
def test_import_accepts_a_turn_without_messages_and_an_empty_compaction(target: Store, tmp_path: Path) -> None:
    conversation = target.open("k", messages=messages(2))
    conversation.save_turn([], {"tokens": 1})
    conversation.clear()
    conversation.save_turn([], {"tokens": 2})
    with target.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_turn SET kind = 'compaction' WHERE turn_no = 2")
        connection.exec_driver_sql("UPDATE lango_session SET summary_turn = 2")
    before = conversation.turns.list()
    export(target, tmp_path / "k.jsonl", "backup", everything=True)
    target.delete("k")
    assert landed(target, (tmp_path / "k.jsonl").read_text().splitlines(), tmp_path / "again.jsonl")
    assert target.conversation("k").turns.list() == before
    every_method_works(target)


@pytest.mark.slow
def test_backup_reports_and_omits_session_that_cannot_be_imported(
    make_database: MakeDatabase, target: Store, tmp_path: Path
) -> None:
    with Store(make_database()) as source:
        for key in ("sound", "tools", "counted"):
            source.create(key, messages=messages(2))
        source.create("long")
        with source.engine.begin() as connection:
            damage = "UPDATE lango_message SET tool_calls = '[1]' WHERE session_key = 'tools' AND seq = 2"
            connection.exec_driver_sql(damage)
            connection.exec_driver_sql("UPDATE lango_session SET message_count = 9 WHERE key = 'counted'")
            connection.exec_driver_sql(f"UPDATE lango_session SET key = '{'z' * 600}' WHERE key = 'long'")
        done = {each.key: each.error for each in export(source, tmp_path / "out", "backup", everything=True)}
    assert done["sound"] is None
    assert "message 2 of session 'tools'" in str(done["tools"])
    assert "message_count: is 9, and the rows of the session say 2" in str(done["counted"])
    assert "600 characters" in str(done["z" * 600])
    (report,) = import_path(target, tmp_path / "out")
    assert report.keys == ["sound"]


def test_deepest_storable_values_are_accepted(target: Store) -> None:
    deep: Any = "end"
    for _ in range(199):
        deep = [deep]
    target.create("k", metadata={"deep": deep[0]}, messages=[message(deep, extra={"deep": deep[0]})])
    with target._context.snapshot() as connection:
        lines = [first_line(), *session_lines(connection, "k"), last_line(1)]
    target.delete("k")
    with target._context.transaction() as writing:
        assert [each.state for each in load(writing, "backup", lines)] == ["imported"]
    assert json.loads(lines[0])["schema"] == SCHEMA_REVISION
