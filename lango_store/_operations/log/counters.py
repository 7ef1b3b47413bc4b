"""Session counters: compare the counters in a session's row with its messages, turns and changes, and correct them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect.statement import Statement
from lango_store._operations.binds import CHANGE, IS_COMPACTION, IS_RECORD, MESSAGE, SESSION, TURN, of_session
from lango_store._operations.session import sessions
from lango_store.errors import DamagedMessage, SessionNotFound, quoted

NAMES: Final = (
    "message_count",
    "record_count",
    "token_count",
    "turn_count",
    "last_seq",
    "last_turn_no",
    "last_consolidated",
    "summary_turn",
    "summarized_upto",
)


def corrections(stored: Mapping[str, Any], rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return the correct values of the counters that contradict a session's rows.

    `last_seq` and `last_turn_no` may be higher than the numbers in the rows, because numbers of removed rows are not
    used again. `last_consolidated` may be any number up to the number of messages.
    """
    correct = {**rows, "last_consolidated": rows["message_count"]}
    for name, is_possible in (
        ("last_seq", int.__ge__),
        ("last_turn_no", int.__ge__),
        ("last_consolidated", int.__le__),
    ):
        if type(stored[name]) is int and type(correct[name]) is int and is_possible(stored[name], correct[name]):
            correct[name] = stored[name]
    return {name: correct[name] for name in NAMES if stored[name] != correct[name]}


def wrong(connection: sa.Connection, key: str | None = None) -> Iterator[tuple[Any, dict[str, tuple[Any, Any]]]]:
    """Yield keys of sessions with wrong counters, and for each wrong counter the stored and the correct value."""
    stored = [SESSION.c[name] for name in NAMES]
    columns, rows = _computed_counters(key)
    query = sa.select(SESSION.c.key, *stored, *columns.values()).select_from(rows)
    if key is not None:
        query = query.where(of_session(SESSION, key))
    for session_key, *numbers in connection.execute(query):
        before = dict(zip(NAMES, numbers, strict=False))
        counted = dict(zip(columns, map(_number, numbers[len(NAMES) :]), strict=True))
        if corrected := corrections(before, counted):
            yield session_key, {name: (before[name], value) for name, value in corrected.items()}


_lock: Final = Statement(lambda _: sa.select(SESSION.c.key).where(of_session(SESSION)).with_for_update())


def correct(connection: sa.Connection, key: str) -> None:
    """Set the wrong counters of a session to the values computed from its rows; see `corrections`."""
    if not _lock.run(connection, {"key": key}):
        raise SessionNotFound(key)
    for _, faults in wrong(connection, key):
        for name, (_, value) in faults.items():
            if isinstance(value, str | bytes | float):
                raise DamagedMessage(key, 0, name, f"its rows say {quoted(value)}")
        values = {name: value for name, (_, value) in faults.items()}
        connection.execute(sa.update(SESSION).where(of_session(SESSION, key)).values(values | sessions.REVISED))


def _computed_counters(key: str | None) -> tuple[dict[str, sa.ColumnElement[Any]], sa.FromClause]:
    """Return expressions that compute the counters of one or all sessions, and the joined tables they select from."""
    messages = _grouped(
        MESSAGE,
        key,
        count=sa.func.count().filter(~IS_RECORD),
        records=sa.func.count().filter(IS_RECORD),
        tokens=sa.func.sum(MESSAGE.c.tokens).filter(~IS_RECORD),
        last_seq=sa.func.max(MESSAGE.c.seq),
    )
    turns = _grouped(
        TURN,
        key,
        count=sa.func.count(),
        last_seq=sa.func.max(TURN.c.last_seq),
        last_turn_no=sa.func.max(TURN.c.turn_no),
        summary_turn=sa.func.max(TURN.c.turn_no).filter(IS_COMPACTION),
    )
    changes = _grouped(CHANGE, key, last_seq=sa.func.max(CHANGE.c.seq))
    summary = TURN.alias()
    last_seq: sa.ColumnElement[int] = sa.literal_column("0")
    for each in (messages, turns, changes):
        last_seq = sa.case((each.c.last_seq > last_seq, each.c.last_seq), else_=last_seq)
    columns = {
        "message_count": sa.func.coalesce(messages.c.count, 0),
        "record_count": sa.func.coalesce(messages.c.records, 0),
        "token_count": sa.func.coalesce(messages.c.tokens, 0),
        "turn_count": sa.func.coalesce(turns.c.count, 0),
        "last_seq": last_seq,
        "last_turn_no": sa.func.coalesce(turns.c.last_turn_no, 0),
        "summary_turn": turns.c.summary_turn,
        "summarized_upto": sa.func.coalesce(summary.c.replaced_upto, 0),
    }
    is_summary = sa.and_(of_session(summary, SESSION.c.key), summary.c.turn_no == turns.c.summary_turn)
    rows = SESSION.outerjoin(messages, of_session(messages, SESSION.c.key))
    rows = rows.outerjoin(changes, of_session(changes, SESSION.c.key))
    return columns, rows.outerjoin(turns, of_session(turns, SESSION.c.key)).outerjoin(summary, is_summary)


def _grouped(table: sa.Table, key: str | None, **columns: sa.ColumnElement[Any]) -> sa.Subquery:
    labelled = [column.label(name) for name, column in columns.items()]
    query = sa.select(table.c.session_key, *labelled).group_by(table.c.session_key)
    return (query if key is None else query.where(of_session(table, key))).subquery()


def _number(value: Any) -> Any:
    """Return a computed number as an int; return NULL, text, bytes and infinity unchanged."""
    try:
        return value if isinstance(value, str | bytes | None) else int(value)
    except OverflowError:
        return value
