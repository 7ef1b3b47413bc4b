"""What can still be read where bytes of the database are damaged: row by row, by the index and past it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import sqlalchemy as sa

from lango_store.columns import as_stored
from lango_store.dialect import AnyConnection, Dialect, Moment, dialect_of
from lango_store.encoding import checked_name, decode_json, decode_time
from lango_store.errors import DamagedMessage, SessionExpired, SessionNotFound
from lango_store.model import Message
from lango_store.operations import messages
from lango_store.operations.binds import KEY, MESSAGE, SESSION, SHARED_VALUE, VALUE, key_column, number, of_session
from lango_store.operations.messages import MAX_SEQ, Range
from lango_store.operations.rows import (
    MESSAGE_COLUMNS,
    SESSION_COLUMNS,
    damaged_rows,
    next_place,
    salvage_messages,
    seq_or_zero,
)
from lango_store.statement import Statement

Place = Callable[[Dialect], sa.ColumnElement[int] | None]

_PAGE: Final = 64
_VALUES: Final = 1_000
_MOST_FAILURES: Final = 1_000
"""After so many places in a row with nothing to read, those between two damages are given up."""


def read(connection: AnyConnection, now: Moment, key: str, chosen: Range) -> list[Message | DamagedMessage]:
    """Read messages of a live session in the order of their seq, a damaged one as the error that names it.

    Where the session's own row cannot be read, its messages are given all the same.
    """
    try:
        return salvage_messages(key, messages.read_rows(connection, now, key, chosen))
    except SessionExpired:
        raise
    except SessionNotFound:
        if not any(_seqs.places(connection, key)):
            raise
    except DamagedMessage:  # of the session's own row
        pass
    except Exception as error:
        if not dialect_of(connection).is_damage(error):
            raise
    return _chosen(_in_pieces(connection, key), chosen)


def _chosen(found: dict[int, Message | DamagedMessage], chosen: Range) -> list[Message | DamagedMessage]:
    within = [found[seq] for seq in sorted(found) if chosen.after < seq < chosen.before or seq == 0]
    if chosen.last is not None:
        return within[max(len(within) - chosen.last, 0) :]
    return within[: chosen.limit]


def _in_pieces(connection: AnyConnection, key: str) -> dict[int, Message | DamagedMessage]:
    """Read whatever can be reached of a session's messages, by their seq."""
    found: dict[int, Message | DamagedMessage] = {}
    rows: dict[Any, list[Any]] = {}
    for walk in (_by_seq, _by_storage):
        for _, *row in walk.rows(connection, key):
            rows.setdefault(row[0], row)
    for row in rows.values():
        for each in salvage_messages(key, [row]):
            found[each.seq] = each
    for seq in _seqs.places(connection, key):
        found.setdefault(seq, unreadable(key, seq))
    return found


def unreadable(key: str, seq: int) -> DamagedMessage:
    """Return the error for a row that an index knows and that cannot be read."""
    return DamagedMessage(key, seq, "row", "its place in the database is damaged")


class Walk:
    """Rows in the order of a number, from the front, from the end, and between two damages place by place."""

    def __init__(
        self, place: Place, columns: Sequence[sa.ColumnElement[Any]], *conditions: sa.ColumnElement[bool]
    ) -> None:
        self._place = place
        self._statements = {
            backwards: Statement(partial(self._write, backwards, columns, conditions)) for backwards in (False, True)
        }

    def _write(
        self,
        backwards: bool,
        columns: Sequence[sa.ColumnElement[Any]],
        conditions: Sequence[sa.ColumnElement[bool]],
        dialect: Dialect,
    ) -> sa.Executable:
        place = self._place(dialect)
        assert place is not None
        return (
            sa.select(place, *columns)
            .where(
                place >= number("first"),
                place <= number("last"),
                *conditions,
            )
            .order_by(place.desc() if backwards else place)
            .limit(number("limit"))
        )

    def rows(self, connection: AnyConnection, key: str = "") -> Iterator[Sequence[Any]]:
        """Yield each row that can be reached, its place first; where damage begins and ends, a row may come twice."""
        if self._place(dialect_of(connection)) is None:
            return
        first, last = 1, MAX_SEQ - 1
        for backwards in (False, True):
            size = _PAGE
            while size:
                found = self._tried(connection, key, first, last, size, backwards=backwards)
                if found is None:
                    size //= 8
                    continue
                yield from found
                if len(found) < size:
                    return
                edge = found[-1][0]
                if type(edge) is not int or not first <= edge <= last:  # a damaged index would lead in a circle
                    size //= 8
                elif backwards:
                    last = edge - 1
                else:
                    first = edge + 1
        last_found = first - 1
        for place in range(first, last + 1):
            if place - last_found > _MOST_FAILURES:
                return
            if found := self._tried(connection, key, place, place, 1):
                last_found = place
                yield from found

    def places(self, connection: AnyConnection, key: str) -> Iterator[int]:
        """Yield the places of the rows alone."""
        return (row[0] for row in self.rows(connection, key) if type(row[0]) is int)

    def _tried(
        self, connection: AnyConnection, key: str, first: int, last: int, limit: int, *, backwards: bool = False
    ) -> list[Sequence[Any]] | None:
        values = {"key": key, "first": first, "last": last, "limit": limit}
        try:
            return self._statements[backwards].run(connection, values)
        except Exception as error:
            if dialect_of(connection).is_damage(error):
                return None
            raise


def _any_order(column: sa.Column[str]) -> sa.ColumnElement[str]:
    return sa.func.coalesce(column, "")  # which no index is asked for


_by_seq: Final = Walk(lambda _: MESSAGE.c.seq, MESSAGE_COLUMNS, of_session(MESSAGE))
_by_storage: Final = Walk(
    lambda dialect: dialect.storage_place(MESSAGE), MESSAGE_COLUMNS, _any_order(MESSAGE.c.session_key) == KEY
)
_seqs: Final = Walk(lambda _: MESSAGE.c.seq, [], of_session(MESSAGE))

_all_messages: Final = Walk(lambda dialect: dialect.storage_place(MESSAGE), [MESSAGE.c.session_key, *MESSAGE_COLUMNS])
_all_sessions: Final = Walk(lambda dialect: dialect.storage_place(SESSION), SESSION_COLUMNS)


def damaged_sessions(connection: sa.Connection) -> Iterator[DamagedMessage]:
    """Yield an error for every damaged session: by its own row, or by messages whose session cannot be reached."""
    keys: set[Any] = set()
    for _, *row in _all_sessions.rows(connection):
        if row[0] not in keys:
            keys.add(row[0])
            yield from damaged_rows([row])
    for key in sorted({key for _, key, *_ in _all_messages.rows(connection) if isinstance(key, str)} - keys):
        yield unreadable(key, 0)


def damaged_message(key: Any, row: Sequence[Any]) -> Iterator[DamagedMessage]:
    """Yield what is wrong with one message's row, if anything is."""
    if not isinstance(key, str):
        yield DamagedMessage(repr(key), seq_or_zero(row[0]), "session_key", "is not text")
        return
    yield from (each for each in salvage_messages(key, [row]) if isinstance(each, DamagedMessage))


def damaged_messages(connection: sa.Connection) -> Iterator[DamagedMessage]:
    """Yield an error for every damaged message that can be reached: by its row, or by what an index says of it."""
    seen: dict[str, set[Any]] = {row[1]: set() for row in _all_sessions.rows(connection) if isinstance(row[1], str)}
    for _, key, *row in _all_messages.rows(connection):
        if row[0] not in seen.setdefault(key if isinstance(key, str) else repr(key), set()):
            seen[key if isinstance(key, str) else repr(key)].add(row[0])
            yield from damaged_message(key, row)
    for key, seqs in seen.items():
        for seq in sorted(set(_seqs.places(connection, key)) - seqs):
            yield unreadable(key, seq)


def damaged_values(connection: sa.Connection) -> Iterator[tuple[sa.Table, Any, Any, str]]:
    """Yield every value that cannot be read: its table, its session or scope, its name, and why."""
    for table in (VALUE, SHARED_VALUE):
        for found in _damaged_values(connection, table):
            yield table, *found


def _damaged_values(connection: sa.Connection, table: sa.Table) -> Iterator[tuple[Any, Any, str]]:
    owner = key_column(table)
    scope, name = "", ""
    while True:
        after = sa.tuple_(*(sa.literal(each, owner.type) for each in (scope, name)))
        query = sa.select(owner, table.c.name, as_stored(table.c.value), as_stored(table.c.updated_at))
        query = query.where(sa.tuple_(owner, table.c.name) > after).order_by(owner, table.c.name)
        rows = connection.execute(query.limit(_VALUES)).all()
        for *place, text, updated_at in rows:
            try:
                checked_name(place[0], place[1])
                decode_json(text)
                decode_time(updated_at)
            except ValueError as error:
                yield place[0], place[1], f"cannot be read: {error}"
        if len(rows) < _VALUES or not all(isinstance(each, str) for each in rows[-1][:2]):
            return  # nothing can be asked to follow what is not text
        scope, name = next_place((scope, name), (rows[-1][0], rows[-1][1]))
