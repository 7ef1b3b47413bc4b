"""Reads of a session's messages: the window that a model sees, and the log of all messages."""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect, Moment, dialect_of
from lango_store._dialect.statement import Decode, Statement
from lango_store._operations.binds import (
    IS_RECORD,
    LIVE,
    LIVE_SESSION,
    MESSAGE,
    SESSION,
    TURN,
    number,
    numbers_of_list,
    of_session,
    text,
)
from lango_store._operations.log import payloads
from lango_store._operations.rows import (
    MESSAGE_COLUMNS,
    MESSAGE_FIELDS,
    SEQ,
    TURN_NO,
    decode_checked,
    decode_or_return_error,
    next_start,
)
from lango_store._operations.session import sessions
from lango_store._operations.session_tables import select_stored
from lango_store._rows.encoding import checked_key, checked_keys, encode_id, end_of_prefix
from lango_store._values.model import Message, SessionInfo
from lango_store._values.session import Session
from lango_store._values.value import built
from lango_store.errors import DatabaseBusy, quoted

MAX_SEQ: Final = 2**63 - 1
_TRIES: Final = 10
ALL: Final = 2**62
"""A limit above any number of messages, to which the length of a summary can be added without overflow."""


def _build_range(dialect: Dialect, *, backwards: bool, chosen_by: str = "") -> sa.Executable:
    # The same statement checks that the session is live, so that no message of an expired session is returned.
    live = sa.exists().where(LIVE_SESSION)
    order: sa.ColumnElement[Any] = MESSAGE.c.seq
    chosen: list[sa.ColumnElement[bool]] = []
    if chosen_by == "id_prefix":
        order, chosen = MESSAGE.c.id, [MESSAGE.c.id >= text("prefix"), MESSAGE.c.id < text("prefix_end")]
    elif chosen_by == "seqs":
        chosen = [MESSAGE.c.seq.in_(numbers_of_list(dialect, "seqs"))]
    return (
        sa.select(*MESSAGE_COLUMNS)
        .where(
            of_session(MESSAGE),
            MESSAGE.c.seq > number("after"),
            MESSAGE.c.seq < number("before"),
            *chosen,
            live,
        )
        .order_by(order.desc() if backwards else order)
        .limit(number("limit"))
    )


_ranges = {
    (chosen_by, backwards): Statement(functools.partial(_build_range, backwards=backwards, chosen_by=chosen_by))
    for chosen_by in ("", "id_prefix", "seqs")
    for backwards in (False, True)
}


def _in_window(records: bool) -> sa.ColumnElement[bool]:
    return sa.true() if records else ~IS_RECORD


def _build_window(_: Dialect, *, records: bool) -> sa.Executable:
    return (
        sa.select(*MESSAGE_COLUMNS)
        .where(
            of_session(MESSAGE),
            MESSAGE.c.seq > number("summarized_upto"),
            MESSAGE.c.seq <= number("last_seq"),
            _in_window(records),
            sa.select(SESSION.c.last_seq - SESSION.c.message_count - SESSION.c.record_count)
            .where(
                of_session(SESSION),
                SESSION.c.incarnation == number("incarnation"),
            )
            .scalar_subquery()
            == number("removed"),
        )
        .order_by(MESSAGE.c.seq)
    )


_window = {records: Statement(functools.partial(_build_window, records=records)) for records in (False, True)}


PayloadMode = Literal["load", "reference"]
"""Load the payloads of messages, or return a `Payload` in the place of each."""


def _decoder(
    connection: AnyConnection, key: str, mode: PayloadMode, decode: Callable[..., Any] = decode_checked
) -> Decode:
    if mode not in ("load", "reference"):
        raise ValueError(f"payloads={quoted(mode)}: give 'load' or 'reference'")
    return payloads.decoder(connection, key, decode, loads=mode == "load")


def load(
    connection: AnyConnection, now: Moment, key: str, *, records: bool = False, mode: PayloadMode = "load"
) -> Session:
    """Load a live session and its window as of one moment, without a transaction."""
    return load_with_incarnation(connection, now, key, records=records, mode=mode)[1]


def load_with_incarnation(
    connection: AnyConnection, now: Moment, key: str, *, records: bool = False, mode: PayloadMode = "load"
) -> tuple[int, Session]:
    """Load a live session and its window, and return them with the session's incarnation.

    The row and the window are read without a transaction, so another writer may commit between the two reads.
    `last_seq` minus the numbers of messages and records shows this: an append keeps the difference, and a removal, an
    edit or a compaction increases it. The window is used if neither the difference nor the incarnation has changed
    since the row was read. Otherwise the row is read again.

    Raises:
        DatabaseBusy: The session was changed during each of 10 reads.
    """
    decode = _decoder(connection, key, mode)
    incarnation, info = sessions.info_with_incarnation(connection, now, key)
    loaded: list[Message] = []
    for _ in range(_TRIES):
        removed = _removed(info)
        if not info.message_count and not (records and info.record_count):
            break
        values = {"key": key, "last_seq": info.last_seq, "summarized_upto": info.summarized_upto}
        values |= {"incarnation": incarnation, "removed": removed}
        if loaded := _window[records].run(connection, values, decode):
            break
        before = incarnation
        incarnation, latest = sessions.info_with_incarnation(connection, now, key)
        if (incarnation, _removed(latest)) == (before, removed):
            break
        info = latest
    else:
        raise DatabaseBusy(f"session {quoted(key)} was changed during each of {_TRIES} reads: try again")
    if (summary_turn := info.summary_turn) is not None:
        # Messages appended during the compaction have a lower seq than the summary.
        loaded = sorted(loaded, key=lambda message: message.turn_no != summary_turn)
    return incarnation, built(Session, vars(info) | {"messages": loaded}, info.model_fields_set | {"messages"})


def _removed(info: SessionInfo) -> int:
    return info.last_seq - info.message_count - info.record_count


def check_seq(name: str, seq: int | None) -> None:
    """Raise ValueError for a value that cannot be a seq."""
    if seq is not None and (type(seq) is not int or not 0 <= seq <= MAX_SEQ):  # SQLite accepts 1.5
        raise ValueError(f"{name}={quoted(seq)} is not a seq: give 0 for the start of the session")


def check_count(name: str, value: int | None) -> None:
    """Raise ValueError for a value that is not a number of 0 or more."""
    if value is not None and (type(value) is not int or value < 0):
        raise ValueError(f"{name}={quoted(value)} is not a number of 0 or more")


@dataclass(frozen=True)
class Range:
    """A selection of messages: those with `after < seq < before`, limited to the first `limit` or the last `last`.

    With `seqs` only those with these seqs, with `id_prefix` only those whose id starts with a text, ordered by id.
    """

    after: int = 0
    before: int = MAX_SEQ
    limit: int | None = None
    last: int | None = None
    seqs: Sequence[int] | None = None
    id_prefix: str | None = None

    def __post_init__(self) -> None:
        if self.seqs is not None and self.id_prefix is not None:
            raise ValueError("seqs and id_prefix choose messages: give one of them")
        for seq in self.seqs or ():
            check_seq("seqs", seq)
        if self.limit is not None and self.last is not None:
            raise ValueError("limit counts from the front and last from the end: give one of them")
        for name in ("after", "before", "limit", "last"):
            check_count(name, getattr(self, name))


Damaged = Literal["raise", "return"]
"""If a row cannot be decoded: raise `DamagedMessage`, or return the error in place of the message."""


def _row_decoder(damaged: Damaged) -> Callable[..., Any]:
    if damaged not in ("raise", "return"):
        raise ValueError(f"damaged={quoted(damaged)}: give 'raise' or 'return'")
    return decode_checked if damaged == "raise" else decode_or_return_error


def read(
    connection: AnyConnection,
    now: Moment,
    key: str,
    chosen: Range,
    damaged: Damaged = "raise",
    mode: PayloadMode = "load",
) -> list[Any]:
    """Read messages of a live session, ordered by seq, or with `id_prefix` by id."""
    decode_row = _row_decoder(damaged)
    limit = chosen.limit if chosen.last is None else chosen.last
    values: dict[str, Any] = {
        "key": checked_key(key),
        "now": dialect_of(connection).time(now),
        "after": min(chosen.after, MAX_SEQ),
        "before": min(chosen.before, MAX_SEQ),
        "limit": MAX_SEQ if limit is None else min(limit, MAX_SEQ),
    }
    chosen_by = ""
    if chosen.id_prefix is not None:
        chosen_by = "id_prefix"
        values |= {"prefix": encode_id(chosen.id_prefix), "prefix_end": end_of_prefix(chosen.id_prefix)}
    elif chosen.seqs is not None:
        chosen_by = "seqs"
        values["seqs"] = json.dumps([*chosen.seqs])
    decode = _decoder(connection, key, mode, decode_row)
    result = _ranges[chosen_by, chosen.last is not None].run(connection, values, decode)
    if not result:
        sessions.raise_unmatched(connection, now, key)
    if chosen.last is not None:
        result.reverse()
    return result


def pages(read_page: Callable[[Range], list[Message]], chosen: Range, size: int) -> Iterator[list[Message]]:
    """Yield messages page by page. Each call of `read_page` uses its own connection, so none is held between pages."""
    if type(size) is not int or size < 1:
        raise ValueError(f"page_size={quoted(size)} is not positive: give 1 or more")
    after = chosen.after
    while True:
        page = read_page(Range(after=after, before=chosen.before, limit=size))
        if page:
            yield page
        if len(page) < size:
            return
        after = next_start(after, page[-1].seq)


_find = Statement(
    lambda _: sa.select(*MESSAGE_COLUMNS).where(
        of_session(MESSAGE),
        MESSAGE.c.id == text("id"),
        sa.exists().where(LIVE_SESSION),
    )
)


def find(connection: AnyConnection, now: Moment, key: str, message_id: str) -> Message | None:
    """Find a message of a live session by its id; return None if there is none."""
    values = {"key": checked_key(key), "now": dialect_of(connection).time(now), "id": encode_id(message_id)}
    found = _find.run(connection, values, payloads.decoder(connection, key))
    if not found:
        sessions.raise_unmatched(connection, now, key)
        return None
    return found[0]  # type: ignore[no-any-return]


def selecting(condition: Callable[[Dialect], sa.ColumnElement[bool]]) -> Statement:
    """Return a statement for `select`: it reads the messages of a session that meet a condition."""
    query = sa.select(*MESSAGE_COLUMNS).where(of_session(MESSAGE)).order_by(MESSAGE.c.seq)
    return Statement(lambda dialect: query.where(condition(dialect)))


def selecting_stored(condition: Callable[[Dialect, sa.Table], sa.ColumnElement[bool]]) -> Statement:
    """Return a statement for `select` as `selecting` does; it also reads messages that are set aside."""
    return Statement(lambda dialect: select_stored(MESSAGE, MESSAGE_FIELDS, functools.partial(condition, dialect)))


def select(connection: AnyConnection, statement: Statement, key: str, **values: Any) -> list[Message]:
    """Read messages of a session with a statement of `selecting`."""
    return statement.run(connection, values | {"key": key}, payloads.decoder(connection, key))


_at = selecting(lambda _: MESSAGE.c.seq == number("seq"))
_with_ids = selecting_stored(lambda dialect, rows: rows.c.id.in_(dialect.texts_of_list(text("ids"))))


def at(connection: AnyConnection, key: str, seq: int) -> Message | None:
    """Return the message of a session with this seq, or None."""
    stored = select(connection, _at, key, seq=seq)
    return stored[0] if stored else None


def read_by_ids(connection: AnyConnection, key: str, ids: frozenset[str]) -> dict[str, Message]:
    """Return the stored messages with these ids as a dict by id, also messages that are set aside."""
    if not ids:
        return {}
    return {str(message.id): message for message in select(connection, _with_ids, key, ids=json.dumps(sorted(ids)))}


def where(connection: sa.Connection, key: str, condition: sa.ColumnElement[bool]) -> list[Message]:
    """Read the messages of a session that meet a condition."""
    query = sa.select(*MESSAGE_COLUMNS).where(of_session(MESSAGE, key), condition).order_by(MESSAGE.c.seq)
    return payloads.decode_rows(connection, key, connection.execute(query).all())


# Several sessions


def _build_ends(dialect: Dialect, *, backwards: bool) -> sa.Executable:
    listed = SESSION.c.key.in_(dialect.texts_of_list(text("keys")))
    end = MESSAGE.alias("end")
    nth = sa.select(end.c.seq).where(of_session(end, SESSION.c.key)).limit(number("one")).offset(number("others"))
    nth = nth.order_by(end.c.seq.desc() if backwards else end.c.seq)
    # Materialized, so that the end of each session is looked up once.
    chosen = sa.select(SESSION.c.key, nth.scalar_subquery().label("seq")).where(listed, LIVE)
    ends = chosen.cte("ends").prefix_with("MATERIALIZED")
    if backwards:
        within = MESSAGE.c.seq >= sa.func.coalesce(ends.c.seq, sa.literal_column("0", sa.BigInteger()))
    else:
        within = MESSAGE.c.seq <= sa.func.coalesce(ends.c.seq, sa.literal_column(str(MAX_SEQ), sa.BigInteger()))
    messages = ends.outerjoin(MESSAGE, sa.and_(of_session(MESSAGE, ends.c.key), within))
    return sa.select(ends.c.key, *MESSAGE_COLUMNS).select_from(messages).order_by(ends.c.key, MESSAGE.c.seq)


_ends = {backwards: Statement(functools.partial(_build_ends, backwards=backwards)) for backwards in (False, True)}


def read_ends(
    connection: AnyConnection,
    now: Moment,
    keys: Sequence[str],
    first: int | None,
    last: int | None,
    damaged: Damaged = "raise",
) -> dict[str, list[Any]]:
    """Return the first or last messages in the logs of several sessions; sessions that are not live are left out."""
    if (first is None) == (last is None):
        raise ValueError("first counts from the front and last from the end: give one of them")
    name, most = ("last", last) if first is None else ("first", first)
    if type(most) is not int or most < 1:
        raise ValueError(f"{name}={quoted(most)} is not positive: give 1 or more")
    decode = _row_decoder(damaged)
    keys = checked_keys(keys)
    bound = {"keys": json.dumps(keys), "now": dialect_of(connection).time(now)}
    bound |= {"one": 1, "others": min(most, MAX_SEQ) - 1}
    rows = _ends[first is None].run(connection, bound)
    logs: dict[str, list[Any]] = {key: [] for key, *_ in rows}
    sound = [(key, row) for key, *row in rows if row[SEQ] is not None]
    for (key, _), message in zip(sound, payloads.decode_many(connection, sound, decode), strict=True):
        logs[key].append(message)
    return {key: logs[key] for key in keys if key in logs}


# The end of a window


def of_live_session(column: sa.ColumnElement[Any]) -> sa.ScalarSelect[Any]:
    """Select a column of the live session."""
    return sa.select(column).where(LIVE_SESSION).scalar_subquery()


SUMMARY_TURN: Final = len(MESSAGE_COLUMNS)
"""The position of the window's `summary_turn` in a row of `build_last`: after the columns of the message."""


def build_last(_: Dialect, *, records: bool = False, others: Sequence[sa.ColumnElement[Any]] = ()) -> sa.Executable:
    """Select the last messages of the window of a live session, with other columns in each row."""
    summary_turn = of_live_session(SESSION.c.summary_turn)
    in_summary = sa.select(TURN.c.last_seq - TURN.c.first_seq + sa.literal_column("1", sa.BigInteger())).where(
        of_session(TURN), TURN.c.turn_no == summary_turn
    )
    # In the window, a summary precedes messages with a lower seq. Its length is added to the limit, so that the rows
    # with the highest seqs include the last messages of the window.
    limit = number("limit") + sa.func.coalesce(in_summary.scalar_subquery(), sa.literal_column("0", sa.BigInteger()))
    return (
        sa.select(*MESSAGE_COLUMNS, summary_turn, *others)
        .where(of_session(MESSAGE), MESSAGE.c.seq > of_live_session(SESSION.c.summarized_upto), _in_window(records))
        .order_by(MESSAGE.c.seq.desc())
        .limit(limit)
    )


_last = {records: Statement(functools.partial(build_last, records=records)) for records in (False, True)}


def read_last(
    connection: AnyConnection,
    now: Moment,
    key: str,
    last: int,
    *,
    records: bool = False,
    mode: PayloadMode = "load",
) -> list[Message]:
    """Read the last messages of a live session's window."""
    return read_with(connection, now, key, last, _last[records], mode=mode)[0]


def _build_records(_: Dialect) -> sa.Executable:
    in_window = (of_session(MESSAGE), MESSAGE.c.seq > of_live_session(SESSION.c.summarized_upto), IS_RECORD)
    return sa.select(*MESSAGE_COLUMNS).where(*in_window, MESSAGE.c.author == text("author")).order_by(MESSAGE.c.seq)


_records = Statement(_build_records)


def read_records(connection: AnyConnection, now: Moment, key: str, author: str) -> list[Message]:
    """Read the records of an author in the window of a live session."""
    values = {"key": checked_key(key), "now": dialect_of(connection).time(now), "author": author}
    return _decoder(connection, key, "load")([_records.run(connection, values)])


def read_with(
    connection: AnyConnection,
    now: Moment,
    key: str,
    last: int,
    statement: Statement,
    *,
    newest: int | None = None,
    mode: PayloadMode = "load",
) -> tuple[list[Message], Sequence[Any] | None]:
    """Return the messages, and a row with what is known about the window, None if it is empty."""
    values = {"key": checked_key(key), "now": dialect_of(connection).time(now), "limit": min(last, ALL)}
    decode = _decoder(connection, key, mode)
    rows = statement.run(connection, values)
    if not rows:
        sessions.raise_unmatched(connection, now, key)
        return [], None
    summary_turn: int | None = rows[0][SUMMARY_TURN]
    shown = rows[:newest][::-1]
    if summary_turn is not None:
        shown.sort(key=lambda row: row[TURN_NO] != summary_turn)
    return decode([[row[:SUMMARY_TURN] for row in shown[max(len(shown) - last, 0) :]]]), rows[0]
