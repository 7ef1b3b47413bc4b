"""Payloads in the database: read, insert and delete the large strings of a session's messages.

A payload belongs to one session. Its rows are written and deleted under the lock of the session's row, together with
the messages that refer to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Moment
from lango_store._dialect.statement import Decode, Statement
from lango_store._operations.binds import (
    KEY,
    MESSAGE,
    PAYLOAD,
    column,
    number,
    of_session,
    text,
)
from lango_store._operations.rows import LISTING, decode_checked
from lango_store._operations.session import sessions
from lango_store._operations.session_tables import MESSAGES
from lango_store._operations.sound_rows import decode_sound
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import checked_key, decode_json, encode_text
from lango_store._rows.payloads import COLUMNS as STRINGS
from lango_store._rows.payloads import FAULTS, Threshold, move, put_back, references
from lango_store._values.model import Message
from lango_store.errors import PayloadNotFound

_HAS_PAYLOADS: Final = MESSAGE.c.payloads.is_not(None)


# Read

_bodies: Final = Statement(
    lambda dialect: sa.select(PAYLOAD.c.digest, PAYLOAD.c.body).where(
        of_session(PAYLOAD), PAYLOAD.c.digest.in_(dialect.texts_of_list(text("digests")))
    )
)


def read(connection: AnyConnection, key: str, digests: set[str]) -> dict[str, str]:
    """Return a session's payloads with these digests, as a dict by digest."""
    return dict(_bodies.run(connection, {"key": key, "digests": json.dumps([*digests])})) if digests else {}


def decoder(
    connection: AnyConnection, key: str, decode: Callable[..., Any] = decode_checked, *, loads: bool = True
) -> Decode:
    """Return a function that decodes rows of `MESSAGE_COLUMNS`, and reads all their payloads with one statement.

    Rows that are not sound are decoded with `decode`. Without `loads`, messages have a `Payload` in the place of each
    payload.

    If the rows were read without a lock or a snapshot, an edit can delete a payload before it is read. The function
    then raises `DamagedMessage`, and `Context` repeats the read in a snapshot.
    """

    def decode_pages(pages: Iterable[Sequence[Any]]) -> list[Any]:
        waiting: list[Any] = []  # rows with payloads

        def decode_other(row: Any) -> Any:
            if loads and row[LISTING] is not None:
                waiting.append(row)
                return None
            return decode(key, row, None)

        decoded = [value for rows in pages for value in decode_sound(rows, decode_other)]
        if waiting:
            bodies, remaining = read(connection, key, digests_of(row[LISTING] for row in waiting)), iter(waiting)
            decoded = [value or decode(key, next(remaining), bodies) for value in decoded]
        return decoded

    return decode_pages


def decode_rows(connection: AnyConnection, key: str, rows: Sequence[Sequence[Any]]) -> list[Message]:
    """Decode rows of `MESSAGE_COLUMNS` with their payloads; see `decoder`."""
    return decoder(connection, key)([rows])


def digests_of(listings: Iterable[str]) -> set[str]:
    """Return the digests in the column `payloads` of several rows, apart from damaged rows."""
    return {reference[0] for listing in listings for reference in _references_of(listing)}


def _references_of(listing: str) -> list[list[Any]]:
    try:
        return list(references(decode_json(listing)))
    except FAULTS:  # decoding the row raises an error that names it
        return []


def find(connection: AnyConnection, now: Moment, key: str, digest: str) -> str:
    """Return a payload of a live session; raise `PayloadNotFound` if there is none."""
    sessions.row_of(connection, now, key)
    bodies = read(connection, checked_key(key), {str(encode_text(digest, "digest"))})
    if digest not in bodies:
        raise PayloadNotFound(key, digest)
    return bodies[digest]


# Write

_insert: Final = Statement(
    lambda dialect: (
        dialect.insert(PAYLOAD)
        .values(session_key=KEY, digest=column(PAYLOAD.c.digest), body=column(PAYLOAD.c.body))
        .on_conflict_do_nothing()
    )
)


def insert(connection: AnyConnection, key: str, bodies: Mapping[str, str]) -> None:
    """Insert payloads of a locked session that are not stored yet."""
    _insert.run_many(connection, [{"key": key, "digest": digest, "body": body} for digest, body in bodies.items()])


def release(connection: sa.Connection, key: str) -> None:
    """Delete the payloads of a locked session to which no message, and no version of one, refers."""
    if unused := _unused(connection, key):
        _delete.run_many(connection, [{"key": key, "digests": json.dumps([*unused])}])


_stored_digests: Final = Statement(lambda _: sa.select(PAYLOAD.c.digest).where(of_session(PAYLOAD)))
_delete: Final = Statement(
    lambda dialect: sa.delete(PAYLOAD).where(
        of_session(PAYLOAD), PAYLOAD.c.digest.in_(dialect.texts_of_list(text("digests")))
    )
)
_listings: Final = {
    table: Statement(
        lambda _, table=table: (  # type: ignore[misc]
            sa.select(as_stored(table.c.payloads)).where(of_session(table), table.c.payloads.is_not(None))
        )
    )
    for table in MESSAGES
}


def _stored(connection: sa.Connection, key: str) -> set[str]:
    return {digest for (digest,) in _stored_digests.run(connection, {"key": key})}


def _unused(connection: sa.Connection, key: str) -> set[str]:
    digests = _stored(connection, key)
    for table in MESSAGES:
        if digests:
            digests -= referenced(connection, key, table)
    return digests


def referenced(connection: sa.Connection, key: str, table: sa.Table = MESSAGE) -> set[str]:
    """Return the digests of the payloads that a session's messages in a table refer to."""
    return digests_of(listing for (listing,) in _listings[table].run(connection, {"key": key}))


# All sessions


def _references(connection: sa.Connection) -> Iterator[tuple[str, list[tuple[int, str, int]]]]:
    """Yield the key of each session, and what its messages and their versions refer to: seq, digest and bytes."""
    parts = [
        sa.select(table.c.session_key, table.c.seq, as_stored(listing)).where(listing.is_not(None))
        for table in MESSAGES
        for listing in (table.c.payloads,)
    ]
    rows = connection.execute(sa.union_all(*parts).order_by("session_key").execution_options(yield_per=1_000))
    for key, listings in groupby(rows, key=itemgetter(0)):
        yield key, [(seq, *each[:2]) for _, seq, listing in listings for each in _references_of(listing)]


def sum_up(connection: sa.Connection) -> tuple[int, int]:
    """Return the bytes of all payloads, and the bytes that they would need without deduplication."""
    stored = total = 0
    for _, places in _references(connection):
        stored += sum({digest: size for _, digest, size in places}.values())
        total += sum(size for *_, size in places)
    return stored, total


def missing(connection: sa.Connection) -> Iterator[tuple[str, int, str]]:
    """Yield key, seq and digest for each message, or version of one, that refers to a missing payload."""
    for key, places in _references(connection):
        stored = _stored(connection, key)
        for seq, digest in dict.fromkeys((seq, digest) for seq, digest, _ in places):
            if digest not in stored:
                yield key, seq, digest


def unused(connection: sa.Connection) -> Iterator[tuple[str, int]]:
    """Yield the key of each session with unused payloads, and the number of these payloads."""
    keys = sa.select(PAYLOAD.c.session_key).distinct().order_by(PAYLOAD.c.session_key)
    for key in connection.execute(keys.execution_options(yield_per=1_000)).scalars():
        if digests := _unused(connection, key):
            yield key, len(digests)


# Move

_NAMES: Final = (*STRINGS, "payloads")
_COLUMNS: Final = [as_stored(MESSAGE.c[name]) for name in _NAMES]
_POSITION: Final = (MESSAGE.c.session_key, MESSAGE.c.seq)

Position = tuple[str, int]
"""The session key and the seq of a message."""


_columns: Final = Statement(
    lambda _: sa.select(*_COLUMNS, MESSAGE.c.role).where(of_session(MESSAGE), MESSAGE.c.seq == number("seq"))
)
_update: Final = Statement(
    lambda _: (
        sa.update(MESSAGE)
        .where(of_session(MESSAGE), MESSAGE.c.seq == number("seq"))
        .values({name: column(MESSAGE.c[name]) for name in _NAMES})
    )
)


def choose(
    connection: sa.Connection, _: Moment, after: Position, limit: int, threshold: Threshold | None
) -> list[Position]:
    """Return the next messages to move: long ones without payloads or, if `threshold` is None, those with payloads."""
    key, seq = after
    bound = {"key": key, "seq": seq, "limit": limit}
    if threshold is None:
        return [(key, seq) for key, seq in _with_payloads.run(connection, bound)]
    return [(key, seq) for key, seq in _long.run(connection, bound | {"least": threshold.small})]


def _build_choice(is_chosen: sa.ColumnElement[bool]) -> sa.Executable:
    is_later = sa.tuple_(*_POSITION) > sa.tuple_(KEY, number("seq"))
    return sa.select(*_POSITION).where(is_later, is_chosen).order_by(*_POSITION).limit(number("limit"))


_ZERO: Final[sa.ColumnElement[int]] = sa.literal_column("0")
_SIZE: Final = sum((sa.func.coalesce(sa.func.length(as_stored(MESSAGE.c[name])), _ZERO) for name in STRINGS), _ZERO)
_with_payloads: Final = Statement(lambda _: _build_choice(_HAS_PAYLOADS))
_long: Final = Statement(lambda _: _build_choice(sa.and_(~_HAS_PAYLOADS, number("least") <= _SIZE)))


def move_rows(connection: sa.Connection, _: datetime, chosen: Sequence[Position], threshold: Threshold | None) -> int:
    """Move strings to payloads or, if `threshold` is None, back to the rows; return the number of changed messages."""
    moved = 0
    for key, positions in groupby(chosen, key=itemgetter(0)):
        sessions.lock_any(connection, key)
        moved += sum(move_row(connection, key, seq, threshold) for _, seq in positions)
        if threshold is None:
            release(connection, key)
    return moved


def move_row(
    connection: sa.Connection, key: str, seq: int, threshold: Threshold | None, *, fills_missing: bool = False
) -> bool:
    """Move strings of a message to payloads or, if `threshold` is None, back to its row; return True if it changed.

    The session must be locked. With `fills_missing`, a missing payload becomes empty text.
    """
    stored = _columns.run(connection, {"key": key, "seq": seq})
    row: dict[str, Any] = dict(zip((*_NAMES, "role"), stored[0], strict=True)) if stored else {}
    if not row or (row["payloads"] is None) == (threshold is None):  # changed since it was chosen
        return False
    try:
        if threshold is None:
            digests = digests_of([row["payloads"]])
            filled = dict.fromkeys(digests, "") if fills_missing else {}
            put_back(row, decode_json(row["payloads"]), filled | read(connection, key, digests))
            row["payloads"] = None
        elif bodies := move(row, threshold):
            insert(connection, key, bodies)
        else:
            return False
    except FAULTS:  # a damaged row is not changed, and `doctor` reports it
        return False
    _update.run_many(connection, [row | {"key": key, "seq": seq}])
    return True
