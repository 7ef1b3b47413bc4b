"""Export of a stored session: reading it as a `SessionDraft` on the caller's connection."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import sqlalchemy as sa

from lango_store import Message, MessageRole, SessionFields
from lango_store._operations.session import values
from lango_store._rooms.alternatives import reading
from lango_store._rooms.tool_calls import suspensions
from lango_store.interchange.draft import Part, Reread, SessionDraft
from lango_store.rows import MESSAGE, MESSAGE_COLUMNS, TURN, Moment, Pages, as_stored, decode_time, mapping, turn_json
from lango_store.rows.storage import MAX_SEQ, payloads, sessions

_FIELDS: Final = tuple(SessionFields.__annotations__)
_LOG: Final = Pages(MESSAGE, MESSAGE_COLUMNS)
_TURNS: Final = Pages(TURN, [as_stored(column) for column in TURN.c])
_TURN: Final = [column.name for column in TURN.c]


def draft(connection: sa.Connection, now: Moment, key: str, system: str) -> SessionDraft:
    """Read a live session, with the value that the import from `system` stored.

    The messages are read on the connection, which must have a snapshot, when the draft is iterated.
    """
    info = sessions.info(connection, now, key)
    fields = {name: getattr(info, name) for name in _FIELDS}
    extra = mapping(values.read(connection, now, key, prefix=system).get(system))
    return SessionDraft(
        key=key,
        parts=Reread(lambda: _parts(connection, key)),
        log=Reread(lambda: log(connection, key)),
        tree=lambda: reading.tree(connection, key),
        fields={name: value for name, value in fields.items() if value not in (None, {}, [])},
        created_at=info.created_at,
        updated_at=info.updated_at,
        last_consolidated=info.last_consolidated,
        summarized_upto=info.summarized_upto,
        forked_from=info.forked_from,
        records=info.record_count,
        extra={system: extra.get("extra")} if extra.get("key") == key else {},
        suspensions=[each.state for each in suspensions.read(connection, now, key) if each.is_open_question],
    )


def log(connection: sa.Connection, key: str) -> Iterator[Message]:
    """Yield the messages of a session without its records, which no other system supports."""
    for rows in _LOG.read(connection, key):
        messages = payloads.decode_rows(connection, key, rows)
        yield from (message for message in messages if message.role is not MessageRole.RECORD)


def _parts(connection: sa.Connection, key: str) -> Iterator[Part]:
    """Yield each turn with the messages from its first to its last seq, and each other message as a separate part."""
    remaining = _Remaining(log(connection, key))
    for rows in _TURNS.read(connection, key):
        for row in rows:
            turn = dict(zip(_TURN, row, strict=True))
            yield from map(_single, remaining.take(turn["first_seq"] - 1))
            yield _turn(key, turn, [*remaining.take(turn["last_seq"])])
    yield from map(_single, remaining.take(MAX_SEQ))


class _Remaining:
    """The messages of a log that were not taken yet."""

    def __init__(self, messages: Iterator[Message]) -> None:
        self._messages = messages
        self._next: Message | None = None

    def take(self, upto: int) -> Iterator[Message]:
        """Yield the messages up to a seq."""
        while message := self._next or next(self._messages, None):
            self._next = message
            if message.seq > upto:
                return
            self._next = None
            yield message


def _single(message: Message) -> Part:
    return Part([message], first_seq=message.seq)


def _turn(key: str, row: Mapping[str, Any], messages: list[Message]) -> Part:
    decoded = {
        name: turn_json(key, row["turn_no"], name, row[name])
        for name in ("usage", "metadata", "extra")
        if row[name] is not None
    }
    return Part(
        messages=messages,
        kind=row["kind"],
        id=row["id"],
        **decoded,
        created_at=decode_time(row["created_at"]),
        first_seq=row["first_seq"],
        replaced_upto=row["replaced_upto"],
    )
