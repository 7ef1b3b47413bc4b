"""One message changed or taken away where it stands; each edit uses one `seq` up, as every removal does.

So a load, and a summary that is being written, notice that the session is not what it was: see `messages.load_life`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from lango_store.dialect import AnyConnection, Moment, dialect_of
from lango_store.encoding import checked_key, encode_id, encode_text
from lango_store.errors import MessageNotFound
from lango_store.model import Message
from lango_store.operations import sessions
from lango_store.operations.binds import (
    IS_COMPACTION,
    IS_RECORD,
    LIVE_SESSION,
    MESSAGE,
    NOW,
    RECORD,
    SESSION,
    TURN,
    column,
    number,
    of_session,
    text,
)
from lango_store.operations.messages import MAX_SEQ
from lango_store.operations.rows import (
    MESSAGE_COLUMNS,
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


def _of_session_row(name: str) -> sa.ScalarSelect[Any]:
    return sa.select(SESSION.c[name]).where(of_session(SESSION)).correlate(None).scalar_subquery()


def _last_seq(*conditions: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    shown = (of_session(MESSAGE), MESSAGE.c.seq > _of_session_row("summarized_upto"), ~IS_RECORD, *conditions)
    last = sa.select(MESSAGE.c.seq).where(*shown).order_by(MESSAGE.c.seq.desc()).limit(sa.literal_column("1"))
    return last.correlate(None).scalar_subquery()


def _last_of_window() -> sa.ColumnElement[int]:
    # What came in while a summary was being written stands after it, and has a lower seq. No turn has the number 0.
    summary_turn = sa.func.coalesce(_of_session_row("summary_turn"), sa.literal_column("0"))
    later = MESSAGE.c.turn_no.is_distinct_from(summary_turn)
    return sa.func.coalesce(_last_seq(later), _last_seq())


def _last_of_log() -> sa.ColumnElement[int]:
    return sa.select(sa.func.max(MESSAGE.c.seq)).where(of_session(MESSAGE)).correlate(None).scalar_subquery()


_PLACES: Final[dict[str, Callable[[], sa.ColumnElement[bool]]]] = {
    "seq": lambda: MESSAGE.c.seq == number("seq"),
    "id": lambda: MESSAGE.c.id == text("id"),
    "last": lambda: MESSAGE.c.seq == _last_of_window(),
    "last of the log": lambda: MESSAGE.c.seq == _last_of_log(),
}


@dataclass(frozen=True)
class _Chosen:
    """What the statements of an edit must know of its message.

    `is_record` is 1 for a record, else 0. `emptied` is its turn if that began with it and nothing of it came later.
    """

    seq: Any
    turn_no: Any
    tokens: Any
    is_record: Any
    emptied: Any


def _more_of_turn(seq: Any) -> sa.ColumnElement[bool]:
    """Whether a turn has something after a seq: a pop passes by records."""
    other = MESSAGE.alias("other")
    within = (other.c.seq > seq, other.c.seq <= TURN.c.last_seq, other.c.turn_no == TURN.c.turn_no)
    return sa.exists().where(other.c.session_key == TURN.c.session_key, *within).correlate(TURN, MESSAGE)


def _one_if_record(role: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    return sa.case((role == RECORD, sa.literal_column("1")), else_=sa.literal_column("0"))


def _choose(place: str) -> sa.Select[Any]:
    began = (of_session(TURN), TURN.c.turn_no == MESSAGE.c.turn_no, TURN.c.first_seq >= MESSAGE.c.seq)
    emptied = sa.select(TURN.c.turn_no).where(*began, ~_more_of_turn(MESSAGE.c.seq)).correlate(MESSAGE)
    told = (_one_if_record(MESSAGE.c.role).label("is_record"), emptied.scalar_subquery().label("emptied"))
    return sa.select(*MESSAGE_COLUMNS, *told).where(of_session(MESSAGE), _PLACES[place]())


# The statements of an edit

Write = Callable[[_Chosen], Any]


def _delete_message(chosen: _Chosen) -> Any:
    return sa.delete(MESSAGE).where(of_session(MESSAGE), MESSAGE.c.seq == chosen.seq).returning(MESSAGE.c.seq)


def _delete_turn(chosen: _Chosen) -> Any:
    return sa.delete(TURN).where(of_session(TURN), TURN.c.turn_no == chosen.emptied).returning(TURN.c.turn_no)


def _shorten_turn(chosen: _Chosen) -> Any:
    through = (TURN.c.turn_no == chosen.turn_no, TURN.c.first_seq < chosen.seq, TURN.c.last_seq >= chosen.seq)
    ends = (*through, ~_more_of_turn(chosen.seq))
    shortened = sa.update(TURN).where(of_session(TURN), *ends).values(last_seq=chosen.seq - 1)
    return shortened.returning(TURN.c.turn_no)


def _change_message(values: Mapping[str, Any]) -> Write:
    def write(chosen: _Chosen) -> Any:
        its = (of_session(MESSAGE), MESSAGE.c.seq == chosen.seq)
        return sa.update(MESSAGE).where(*its).values(values).returning(MESSAGE.c.seq)

    return write


def _count(chosen: _Chosen, added: sa.ColumnElement[int], **also: Any) -> Any:
    counted = sa.case((chosen.is_record == 0, sa.func.coalesce(chosen.tokens, 0)), else_=0)
    values = {
        "last_seq": SESSION.c.last_seq + 1,
        "token_count": SESSION.c.token_count + added - counted,
        "updated_at": NOW,
    }
    changed = (
        sa.update(SESSION).where(of_session(SESSION), chosen.seq.is_not(None)).values(values | sessions.REVISED | also)
    )
    return changed.returning(SESSION.c.last_seq)


def _said_before(chosen: _Chosen) -> sa.ColumnElement[int]:
    """How many messages of the session come before this one or this record."""
    later = sa.select(sa.func.count()).where(of_session(MESSAGE), MESSAGE.c.seq > chosen.seq, ~IS_RECORD)
    said: sa.ColumnElement[int] = SESSION.c.message_count - later.scalar_subquery() - (1 - chosen.is_record)
    return said


def _consolidated(chosen: _Chosen, change: Any) -> sa.ColumnElement[int]:
    """How many messages are consolidated if there is one more here or one less: they end where they did."""
    consolidated = SESSION.c.last_consolidated
    unchanged = sa.or_(change == 0, consolidated == 0)
    return sa.case(
        (unchanged, consolidated),
        (_said_before(chosen) < consolidated, consolidated + change),
        else_=consolidated,
    )


def _count_without(chosen: _Chosen) -> Any:
    return _count(
        chosen,
        sa.literal_column("0"),
        message_count=SESSION.c.message_count - (1 - chosen.is_record),
        record_count=SESSION.c.record_count - chosen.is_record,
        last_consolidated=_consolidated(chosen, chosen.is_record - 1),
    )


def _count_instead(chosen: _Chosen) -> Any:
    """Count a message in the place of another, where each may be a record."""
    is_record = _one_if_record(_given["role"])
    added = sa.case((_given["role"] == RECORD, 0), else_=sa.func.coalesce(_given["tokens"], 0))
    change = chosen.is_record - is_record
    return _count(
        chosen,
        added,
        message_count=SESSION.c.message_count + change,
        record_count=SESSION.c.record_count - change,
        last_consolidated=_consolidated(chosen, change),
    )


def _count_without_turn(chosen: _Chosen) -> Any:
    left = (of_session(TURN), IS_COMPACTION, TURN.c.turn_no != chosen.emptied)
    last = sa.select(TURN.c.turn_no, TURN.c.replaced_upto).where(*left).order_by(TURN.c.turn_no.desc())
    last = last.limit(sa.literal_column("1"))
    summary_turn = sa.select(last.subquery().c.turn_no).scalar_subquery()
    upto = sa.func.coalesce(sa.select(last.subquery().c.replaced_upto).scalar_subquery(), 0)
    gone = SESSION.c.summary_turn == chosen.emptied
    return _count_without(chosen).values(
        turn_count=SESSION.c.turn_count - sa.case((chosen.emptied.is_not(None), 1), else_=0),
        summary_turn=sa.case((gone, summary_turn), else_=SESSION.c.summary_turn),
        summarized_upto=sa.case((gone, upto), else_=SESSION.c.summarized_upto),
    )


@dataclass(frozen=True)
class _Step:
    """A statement of an edit, and whether a message needs it."""

    write: Write
    needed: Callable[[Mapping[str, Any]], bool] = lambda _: True


class _Edit:
    """An edit of messages that are chosen in some ways: one statement after a lock, or a few where none can hold all.

    The last step counts, and it must meet the session.
    """

    def __init__(self, places: Sequence[str], *steps: _Step) -> None:
        self._whole = {place: Statement(lambda _, place=place: self._write_whole(place)) for place in places}  # type: ignore[misc]
        self._choose = {place: Statement(lambda _, place=place: self._write_choice(place)) for place in places}  # type: ignore[misc]
        read = _Chosen(*(number(f"chosen_{name}") for name in _CHOSEN))
        self._steps = [(Statement(lambda _, step=step: step.write(read)), step.needed) for step in steps]  # type: ignore[misc]
        self._written = [step.write for step in steps]

    def _write_whole(self, place: str) -> sa.Select[Any]:
        row = _choose(place).cte("chosen")
        chosen = _Chosen(*(sa.select(row.c[name]).scalar_subquery() for name in _CHOSEN))
        *others, counted = [write(chosen).cte(f"step_{number}") for number, write in enumerate(self._written)]
        return sa.select(*row.c, sa.exists(sa.select(counted.c[0]))).add_cte(*others)

    @staticmethod
    def _write_choice(place: str) -> sa.Select[Any]:
        return _choose(place).where(sa.exists().where(LIVE_SESSION))

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
        if one_statement or expected != ANYTHING:
            # By a statement of its own, so that the next one sees what is there then.
            found = sessions.lock(connection, now, key)
            expected.check(key, found.last_seq, found.revision)
        if one_statement:
            rows = self._whole[place].run(connection, values)
            written = bool(rows) and rows[0][-1]
        else:
            rows = self._choose[place].run(connection, values)
            if not rows:
                sessions.refuse(connection, now, key)
            written = bool(rows) and self._run_steps(connection, values, rows[0])
        if rows and not written:
            raise sessions.not_written(connection, key)
        return list(rows[0][: len(MESSAGE_FIELDS)]) if rows else None

    def _run_steps(self, connection: AnyConnection, values: Mapping[str, Any], row: Sequence[Any]) -> bool:
        chosen = dict(zip((*MESSAGE_FIELDS, "is_record", "emptied"), row, strict=True))
        if not isinstance(chosen["tokens"], int):
            chosen["tokens"] = None  # damaged, and counted as none
        values = {**values, **{f"chosen_{name}": chosen[name] for name in _CHOSEN}}
        written: list[Any] = []
        for statement, needed in self._steps:
            if needed(chosen):
                written = statement.run(connection, values)
        return bool(written)


_CHOSEN: Final = ("seq", "turn_no", "tokens", "is_record", "emptied")


# The edits

_pop = _Edit(
    ["last", "last of the log"],
    _Step(_delete_message),
    _Step(_delete_turn, lambda chosen: chosen["emptied"] is not None),
    _Step(_shorten_turn, lambda chosen: chosen["turn_no"] is not None and chosen["emptied"] is None),
    _Step(_count_without_turn),
)


def pop(connection: AnyConnection, now: Moment, key: str, *, records: bool = False) -> Message | None:
    """Remove the last message of the window, or with `records` of the log, and return it; None if there is none.

    Its turn ends before it, or goes if it began with it, unless records of the turn came later. Needs a transaction.
    """
    row = _pop.run(connection, now, key, "last of the log" if records else "last", {})
    return None if row is None else decode_messages(key, [row])[0]


_delete = _Edit(["seq", "id"], _Step(_delete_message), _Step(_count_without))


def delete(connection: AnyConnection, now: Moment, key: str, seq_or_id: Place, expected: Expected = ANYTHING) -> None:
    """Delete a message of a live session; turns and summaries stay as they are. Needs a transaction."""
    _edit(_delete, connection, now, key, seq_or_id, {}, expected)


_given = {name: column(MESSAGE.c[name], f"new_{name}") for name in MESSAGE_GIVEN}
_update = _Edit(
    ["seq", "id"],
    _Step(
        _change_message(
            _given | {name: sa.func.coalesce(_given[name], MESSAGE.c[name]) for name in ("id", "created_at")}
        )
    ),
    _Step(_count_instead),
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
    if message.created_at is not None:
        new["created_at"] = dialect_of(connection).time(message.created_at)
    row = _edit(
        _update, connection, now, key, seq_or_id, {f"new_{name}": value for name, value in new.items()}, expected
    )
    left = {name: row[name] for name in ("id", "created_at") if new[name] is None}
    return decode_messages(key, [list((row | new | left).values())])[0]


_redact = _Edit(
    ["seq", "id"],
    _Step(
        _change_message(
            {name: _given[name] for name in TAKEN} | {"tokens": sa.case((MESSAGE.c.tokens.is_not(None), 0))}
        )
    ),
    _Step(lambda chosen: _count(chosen, sa.literal_column("0"))),
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
