"""Payloads in the database: read, insert and delete the large strings of a session's messages.

A payload belongs to one session. Its rows are written and deleted under the lock of the session's row, together with
the messages that refer to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
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
    of_session,
    text,
)
from lango_store._operations.rows import LISTING, decode_checked
from lango_store._operations.session import sessions
from lango_store._operations.session_tables import MESSAGES, with_aside
from lango_store._operations.sound_rows import decode_sound
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import checked_key, decode_json, encode_text
from lango_store._rows.payloads import FAULTS, references
from lango_store._values.model import Message
from lango_store.errors import PayloadNotFound

# Read

_bodies: Final = Statement(
    lambda dialect: sa.select(PAYLOAD.c.digest, PAYLOAD.c.body).where(
        of_session(PAYLOAD), PAYLOAD.c.digest.in_(dialect.texts_of_list(text("digests")))
    )
)


_bodies_of_many: Final = Statement(
    lambda dialect: sa.select(PAYLOAD.c.session_key, PAYLOAD.c.digest, PAYLOAD.c.body).where(
        PAYLOAD.c.session_key.in_(dialect.texts_of_list(text("keys"))),
        PAYLOAD.c.digest.in_(dialect.texts_of_list(text("digests"))),
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


def decode_many(
    connection: AnyConnection, rows: Sequence[tuple[str, Sequence[Any]]], decode: Callable[..., Any]
) -> list[Any]:
    """Decode rows of `MESSAGE_COLUMNS` of several sessions, each with its session key; see `decoder`."""
    listings = [(key, row[LISTING]) for key, row in rows if row[LISTING] is not None]
    bodies: dict[str, dict[str, str]] = {key: {} for key, _ in listings}
    if listings:
        digests = digests_of(listing for _, listing in listings)
        bound = {"keys": json.dumps([*bodies]), "digests": json.dumps([*digests])}
        for key, digest, body in _bodies_of_many.run(connection, bound):
            bodies[key][digest] = body
    decoded: list[Any] = []
    for key, group in groupby(rows, itemgetter(0)):
        decode_other = partial(_decode_with, decode, key, bodies.get(key))
        decoded += decode_sound([row for _, row in group], decode_other)
    return decoded


def _decode_with(decode: Callable[..., Any], key: str, bodies: Mapping[str, str] | None, row: Sequence[Any]) -> Any:
    return decode(key, row, bodies)


def decode_rows(connection: AnyConnection, key: str, rows: Sequence[Sequence[Any]]) -> list[Message]:
    """Decode rows of `MESSAGE_COLUMNS` with their payloads; see `decoder`."""
    return decoder(connection, key)([rows])


def digests_of(listings: Iterable[str]) -> set[str]:
    """Return the digests in the column `payloads` of several rows, apart from damaged rows."""
    return {reference[0] for listing in listings for reference in references_of(listing)}


def references_of(listing: str) -> list[list[Any]]:
    """Return the references in the column `payloads` of a row; none if it is damaged."""
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
    if digests := unused(connection, key):
        _delete.run_many(connection, [{"key": key, "digests": json.dumps([*digests])}])


_stored_digests: Final = Statement(lambda _: sa.select(PAYLOAD.c.digest).where(of_session(PAYLOAD)))
_delete: Final = Statement(
    lambda dialect: sa.delete(PAYLOAD).where(
        of_session(PAYLOAD), PAYLOAD.c.digest.in_(dialect.texts_of_list(text("digests")))
    )
)


def _listing(*tables: sa.Table) -> Statement:
    queries = [sa.select(as_stored(each.c.payloads)).where(of_session(each)) for each in tables]
    return Statement(sa.union_all(*(each.where(each.selected_columns[0].is_not(None)) for each in queries)))


_in_log: Final = _listing(MESSAGE)
_elsewhere: Final = _listing(*(each for each in MESSAGES if each is not MESSAGE))
_of_session: Final = _listing(*with_aside(MESSAGE))


def stored(connection: sa.Connection, key: str) -> set[str]:
    """Return the digests of a session's payloads."""
    return {digest for (digest,) in _stored_digests.run(connection, {"key": key})}


def unused(connection: sa.Connection, key: str) -> set[str]:
    """Return the digests of a session's payloads to which no message, and no version of one, refers."""
    digests = stored(connection, key)
    for listings in (_in_log, _elsewhere):
        if digests:
            digests -= referenced(connection, key, listings)
    return digests


def referenced(connection: sa.Connection, key: str, listings: Statement = _of_session) -> set[str]:
    """Return the digests of the payloads that a session's messages refer to, without those that a change removed."""
    return digests_of(listing for (listing,) in listings.run(connection, {"key": key}))
