"""One message changed or taken away where it stands; each edit uses one `seq` up, as every removal does.

So a load, and a summary that is being written, notice that the session is not what it was: see `messages.load_life`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from lango_store.dialect import AnyConnection, Moment, dialect_of
from lango_store.encoding import checked_key, encode_id, encode_text
from lango_store.errors import MessageNotFound, Withheld
from lango_store.model import Message
from lango_store.operations import edit_statements as statements
from lango_store.operations import sessions
from lango_store.operations.binds import (
    LIVE_SESSION,
    MESSAGE,
    SESSION,
    TURN,
    number,
)
from lango_store.operations.messages import MAX_SEQ
from lango_store.operations.rows import (
    MESSAGE_FIELDS,
    MESSAGE_GIVEN,
    decode_messages,
    encode_message,
)
from lango_store.operations.sessions import ANYTHING, Expected
from lango_store.statement import Statement

Place = int | str
"""Where a message stands: its seq, or its id."""

TAKEN: Final = tuple(
    name
    for name in MESSAGE_GIVEN
    if name not in ("id", "role", "author", "name", "tool_call_id", "tokens", "created_at")
)
"""The columns that are taken from a message that is redacted."""


# Which message


def checked_place(seq_or_id: Place) -> Place:
    """Return a seq, 0 for a number that is none, or an id; TypeError for anything else."""
    if type(seq_or_id) is int:
        return seq_or_id if 0 < seq_or_id <= MAX_SEQ else 0
    if isinstance(seq_or_id, str):
        return str(encode_id(seq_or_id))
    raise TypeError(f"seq_or_id is {type(seq_or_id).__name__}: give the seq of a message, or its id")


# How an edit is run


@dataclass(frozen=True)
class _Step:
    """A statement of an edit, which has to meet a row of a table; `if_` is what a message must have to need it."""

    write: statements.Write
    table: sa.Table
    if_: str = "seq"


class _Edit:
    """An edit of messages that are chosen in some ways: one statement after a lock, or a few where none can hold all.

    The last step counts, in the session's row.
    """

    def __init__(self, places: Sequence[str], *steps: _Step) -> None:
        self._whole = {place: Statement(lambda _, place=place: self._write_whole(place)) for place in places}  # type: ignore[misc]
        self._choose = {place: Statement(lambda _, place=place: self._write_choice(place)) for place in places}  # type: ignore[misc]
        read = statements.Chosen(*(number(f"chosen_{name}") for name in statements.CHOSEN))
        self._single = [Statement(lambda _, step=step: step.write(read)) for step in steps]  # type: ignore[misc]
        self._steps = steps

    def _write_whole(self, place: str) -> sa.Select[Any]:
        row = statements.choose(place).cte("chosen")
        chosen = statements.Chosen(*(sa.select(row.c[name]).scalar_subquery() for name in statements.CHOSEN))
        steps = [step.write(chosen).cte(f"step_{number}") for number, step in enumerate(self._steps)]
        met = [sa.exists(sa.select(step.c[0])) for step in steps]
        return sa.select(*row.c, *met).add_cte(*steps)

    @staticmethod
    def _write_choice(place: str) -> sa.Select[Any]:
        return statements.choose(place).where(sa.exists().where(LIVE_SESSION))

    def run(
        self,
        connection: AnyConnection,
        now: Moment,
        key: str,
        place: str,
        values: Mapping[str, Any],
        expected: Expected = ANYTHING,
    ) -> list[Any] | None:
        """Edit a message of a live session, and return its row as it was; None if there is none. In a transaction."""
        values = {"key": checked_key(key), "now": dialect_of(connection).time(now), **values}
        one_statement = dialect_of(connection).modifying_cte
        if not dialect_of(connection).one_writer or expected != ANYTHING:
            # By a statement of its own, so that the next one sees what is there then.
            found = sessions.lock(connection, now, key)
            expected.check(key, found.last_seq, found.revision)
        rows = (self._whole if one_statement else self._choose)[place].run(connection, values)
        if not rows:
            if not one_statement:
                sessions.refuse(connection, now, key)
            return None
        row = rows[0]
        chosen = dict(zip(statements.TOLD, row, strict=False))
        met = row[len(chosen) :] if one_statement else self._run_steps(connection, values, chosen)
        if not met[-1]:
            raise sessions.not_written(connection, key)
        for step, found in zip(self._steps, met, strict=True):
            if not found and chosen[step.if_] is not None:
                fact = f"message {chosen['seq']} of session {key!r} is there, but its row was not written"
                raise Withheld(step.table.name, fact)
        return list(row[: len(MESSAGE_FIELDS)])

    def _run_steps(
        self, connection: AnyConnection, values: Mapping[str, Any], chosen: Mapping[str, Any]
    ) -> Sequence[bool]:
        """Run the steps that the message needs, and return which of all of them met a row."""
        values = {**values, **{f"chosen_{name}": chosen[name] for name in statements.CHOSEN}}
        if not isinstance(chosen["tokens"], int):
            values["chosen_tokens"] = None  # damaged, and counted as none
        steps = zip(self._steps, self._single, strict=True)
        return [chosen[step.if_] is not None and bool(single.run(connection, values)) for step, single in steps]


# The edits

_pop = _Edit(
    ["last", "last of the log"],
    _Step(statements.delete_message, MESSAGE),
    _Step(statements.delete_turn, TURN, if_="emptied"),
    _Step(statements.shorten_turn, TURN, if_="ends"),
    _Step(statements.count_without_turn, SESSION),
)


def pop(connection: AnyConnection, now: Moment, key: str, *, records: bool) -> Message | None:
    """Remove the last message of the window, or with `records` of the log, and return it; None if there is none.

    Its turn ends before it, or goes if it began with it, unless records of the turn came later. With a summary that
    goes, what it replaced is in the window again, unless that was discarded. Needs a transaction.
    """
    row = _pop.run(connection, now, key, "last of the log" if records else "last", {})
    return None if row is None else decode_messages(key, [row])[0]


_delete = _Edit(["seq", "id"], _Step(statements.delete_message, MESSAGE), _Step(statements.count_without, SESSION))


def delete(connection: AnyConnection, now: Moment, key: str, seq_or_id: Place, expected: Expected = ANYTHING) -> None:
    """Delete a message of a live session; turns and summaries stay as they are. Needs a transaction."""
    _edit(_delete, connection, now, key, seq_or_id, {}, expected)


_update = _Edit(
    ["seq", "id"],
    _Step(
        statements.change_message(
            statements.GIVEN
            | {name: sa.func.coalesce(statements.GIVEN[name], MESSAGE.c[name]) for name in ("id", "created_at")}
        ),
        MESSAGE,
    ),
    _Step(statements.count_instead, SESSION),
)


def update(
    connection: AnyConnection,
    now: Moment,
    key: str,
    seq_or_id: Place,
    message: Message,
    expected: Expected = ANYTHING,
) -> Message:
    """Put a message in the place of another, which leaves it its turn, and its id and time unless it has its own.

    Needs a transaction, and a caller who says what an id that is stored already means.
    """
    new = encode_message(message)
    new["created_at"] = dialect_of(connection).time(new["created_at"])
    row = _edit(
        _update, connection, now, key, seq_or_id, {f"new_{name}": value for name, value in new.items()}, expected
    )
    left = {name: row[name] for name in ("id", "created_at") if new[name] is None}
    return decode_messages(key, [list((row | new | left).values())])[0]


_redact = _Edit(
    ["seq", "id"],
    _Step(
        statements.change_message(
            {name: statements.GIVEN[name] for name in TAKEN} | {"tokens": sa.case((MESSAGE.c.tokens.is_not(None), 0))}
        ),
        MESSAGE,
    ),
    _Step(lambda chosen: statements.count(chosen, sa.literal_column("0")), SESSION),
)


def redact(connection: AnyConnection, now: Moment, key: str, seq_or_id: Place, reason: str | None) -> Message:
    """Take content, tool calls and extra from a message of a live session; a reason is its new extra."""
    new = redacted(reason)
    row = _edit(_redact, connection, now, key, seq_or_id, {f"new_{name}": value for name, value in new.items()})
    if row["tokens"] is not None:
        new["tokens"] = 0
    return decode_messages(key, [list((row | new).values())])[0]


def redacted(reason: str | None) -> dict[str, Any]:
    """Return what stands in the columns of a redacted message that are taken from it."""
    extra = {} if encode_text(reason, "reason") is None else {"redacted": reason}
    left = encode_message(Message.user(extra=extra))
    return {name: left[name] for name in TAKEN}


def _edit(
    edit: _Edit,
    connection: AnyConnection,
    now: Moment,
    key: str,
    seq_or_id: Place,
    values: Mapping[str, Any],
    expected: Expected = ANYTHING,
) -> dict[str, Any]:
    place = checked_place(seq_or_id)
    name = "id" if isinstance(place, str) else "seq"
    row = edit.run(connection, now, key, name, {name: place, **values}, expected)
    if row is None:
        raise MessageNotFound(key, seq_or_id)
    return dict(zip(MESSAGE_FIELDS, row, strict=True))
