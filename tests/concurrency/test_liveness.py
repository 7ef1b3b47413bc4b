"""Writes that update no row (damaged expiry, trigger, policy) end at once with the reason."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from support.databases import MakeDatabase
from support.factories import message, messages
from support.triggers import eat

from lango_store import Conversation, DatabaseUnavailable, SessionExpired, Store
from lango_store.testing import Clock

WRITES: dict[str, Callable[[Conversation], object]] = {
    "append": lambda c: c.append_message(message()),
    "append after": lambda c: c.append_message(message(), after=c.info().last_seq),
    "append with an id": lambda c: c.append_message(message(id="new")),
    "append with a known id": lambda c: c.append_messages([message(id="a"), message(id="b")]),
    "append many": lambda c: c.append_messages(messages(3)),
    "save_turn": lambda c: c.save_turn(messages(2), {"tokens": 1}),
    "update": lambda c: c.update(title="new"),
    "consolidate": lambda c: c.update(last_consolidated=3),
    "truncate": lambda c: c.truncate(after=1),
    "pop": lambda c: c.pop_message(),
    "edits.update": lambda c: c.edits.update(2, message("new")),
    "edits.delete": lambda c: c.edits.delete("a"),
    "edits.redact": lambda c: c.edits.redact("a"),
    "clear": lambda c: c.clear(),
    "compact": lambda c: c.compact(lambda window: [message("summary")]),
    "set_values": lambda c: c.values.set({"a": 1}),
    "fork": lambda c: c.fork("forked"),
    "replace_after": lambda c: c.append_messages([message()], replace_after=1),
}


def extend_ttl(store: Store) -> None:
    store.touch("k", ttl=timedelta(hours=2))


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_write_to_a_session_with_a_wrongly_formatted_expiry_raises_session_expired(
    make_sqlite: MakeDatabase, clock: Clock, write: Callable[[Conversation], object]
) -> None:
    clock.time = datetime(2026, 11, 22, 5, 30, tzinfo=UTC)
    with Store(make_sqlite(), clock=clock) as store:
        conversation = store.open("k", messages=[message(id="a"), *messages(2)])
        with store.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE lango_session SET expires_at = '2026-11-22 05:40:00+00:00'")
        with pytest.raises(SessionExpired, match="05:40"):  # this form sorts before every time of the same day
            write(conversation)
        assert not store.exists("k")
        assert [info.key for info in store.list_sessions(expired=True).items] == ["k"]
        extend_ttl(store)
        write(conversation)


@pytest.mark.parametrize("write", [*WRITES.values(), None], ids=[*WRITES, "touch"])
def test_write_that_a_trigger_suppresses_raises_database_unavailable(
    make_postgres: MakeDatabase, write: Callable[[Conversation], object] | None
) -> None:
    with Store(make_postgres()) as store:
        conversation = store.open("k", ttl=timedelta(hours=1), messages=[message(id="a"), *messages(2)])
        eat(store.engine, "UPDATE", "lango_session")
        before = store.get("k")
        with pytest.raises(DatabaseUnavailable, match=r"'k'|'forked'") as raised:
            extend_ttl(store) if write is None else write(conversation)
        for word in ("trigger", "policy", "doctor"):
            assert word in str(raised.value)
        assert store.get("k") == before
        assert not store.exists("forked")


FORMS: dict[str, object] = {
    "blank separator": "2026-11-22 05:40:00+00:00",
    "other time zone": "2026-11-22T05:40:00.000001+02:00",
    "Z": "2026-11-22T05:40:00Z",
    "no time zone": "2026-11-22 05:40:00",
    "word": "tomorrow",
    "number": 1_763_789_000,
}
"""Wrongly formatted times, by their fault."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "column_name",
    [
        "lango_session.created_at",
        "lango_session.updated_at",
        "lango_session.expires_at",
        "lango_turn.created_at",
        "lango_message.created_at",
    ],
)
def test_examine_reports_wrongly_formatted_times(make_sqlite: MakeDatabase, column_name: str) -> None:
    table, column = column_name.split(".")
    key_column = "key" if table == "lango_session" else "session_key"
    with Store(make_sqlite()) as store:
        for key in (*FORMS, "sound"):
            store.open(key, ttl=timedelta(days=9)).save_turn([message()])
        with store.engine.begin() as connection:
            for key, stored in FORMS.items():
                connection.exec_driver_sql(f"UPDATE {table} SET {column} = ? WHERE {key_column} = ?", (stored, key))
        findings = [each for each in store.maintenance.examine(repair=True) if each.name == "time in another form"]
    assert sorted(each.subject for each in findings) == sorted(FORMS)
    for each in findings:
        assert column_name in each.detail
        assert str(FORMS[each.subject]) in each.detail
        assert each.repaired == (each.subject in ("blank separator", "other time zone", "Z"))
