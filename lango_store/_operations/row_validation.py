"""Rows of a session from a file, checked as the values that they will be read as.

A file's digest says that it is as it was written, not who wrote it. A row that no verb could read is refused here.
"""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from pydantic import BaseModel, ValidationError

from lango_store._operations import sessions, transfer
from lango_store._operations.binds import MESSAGE, SESSION, TURN
from lango_store._operations.rows import MESSAGE_FIELDS, decode_messages
from lango_store._operations.transfer import Row
from lango_store._rows.columns import JsonColumn, TimeColumn
from lango_store._rows.encoding import (
    MAX_LEVELS,
    checked_key,
    checked_name,
    decode_json,
    decode_time,
    encode_id,
    encode_text,
    reject_constant,
)
from lango_store._values.json_faults import levels_within
from lango_store._values.model import Compaction, Message, MessageRole, Turn
from lango_store.errors import DamagedMessage, InvalidKey, InvalidValue

Kind = TypeVar("Kind", bound=BaseModel)

_KINDS: Final[dict[tuple[str, str], type]] = {
    (SESSION.name, "settings"): dict,
    (SESSION.name, "metadata"): dict,
    (SESSION.name, "tools"): list,
    (TURN.name, "usage"): dict,
    (TURN.name, "metadata"): dict,
}
_MOST: Final = 2**62  # what is counted on from here still fits the column
_MOST_LEVELS: Final = MAX_LEVELS + 5  # a tool call's arguments may have all levels, inside of the list of calls


class Incoming:
    """The rows of one session, one after the other, its own first, and what they say of its counters."""

    def __init__(self) -> None:
        self._session: Row = {}
        self._rows: dict[str, Any] = {"message_count": 0, "record_count": 0, "token_count": 0, "turn_count": 0}
        self._highest = {"last_seq": 0, "last_turn_no": 0}
        self._summary: tuple[int | None, int] = None, 0

    def admit(self, table: sa.Table, row: Row) -> Row:
        """Return a row as it is written; `InvalidValue` names the field that cannot be read."""
        row = transfer.arrived(table, row)
        for column in transfer.COLUMNS[table.name]:
            _check(column, row[column.name])
        if table is SESSION:
            self._session = {name: value for name, value in row.items() if not isinstance(value, str)}
        elif table is TURN:
            self._count_turn(_as_turn(row))
        elif table is MESSAGE:
            self._count_message(_as_message(row))
        else:
            _as_value(row)
        return row

    def disagreeing(self) -> dict[str, Any]:
        """Return the counters of the session that its rows contradict, as these have them."""
        count = self._rows["message_count"]
        summary_turn, summarized_upto = self._summary
        found = self._rows | {
            "last_seq": max(self._session["last_seq"], self._highest["last_seq"]),
            "last_turn_no": max(self._session["last_turn_no"], self._highest["last_turn_no"]),
            "last_consolidated": min(self._session["last_consolidated"], count),
            "summary_turn": summary_turn,
            "summarized_upto": summarized_upto,
        }
        return {name: value for name, value in found.items() if self._session[name] != value}

    def check_counters(self) -> None:
        """Raise `InvalidValue` for a counter of the session that its rows contradict."""
        for name, counted in sorted(self.disagreeing().items()):
            raise InvalidValue(name, f"is {self._session[name]}, and the rows of the session say {counted}")

    def _count_turn(self, turn: Turn) -> None:
        if not 0 < turn.first_seq <= turn.last_seq + 1:
            raise InvalidValue("first_seq", f"is {turn.first_seq}, and last_seq is {turn.last_seq}")
        self._rows["turn_count"] += 1
        self._reach(last_seq=turn.last_seq, last_turn_no=turn.turn_no)
        if turn.kind == "compaction" and turn.turn_no >= (self._summary[0] or 0):
            self._summary = turn.turn_no, turn.replaced_upto or 0

    def _count_message(self, message: Message) -> None:
        if message.role is MessageRole.RECORD:
            self._rows["record_count"] += 1
        else:
            self._rows["message_count"] += 1
            self._rows["token_count"] += message.tokens or 0
        self._reach(last_seq=message.seq)

    def _reach(self, **numbers: int) -> None:
        for name, number in numbers.items():
            self._highest[name] = max(self._highest[name], number)


# Values


def _check(column: sa.Column[Any], value: Any) -> None:
    """Refuse what a column of this kind never holds; SQLite would take it."""
    name = column.name
    if value is None:
        if not column.nullable:
            raise InvalidValue(name, "is missing")
        return
    try:
        fault = _fault(column, value)
    except InvalidValue:
        raise
    except (ValueError, OverflowError, RecursionError) as error:
        fault = f"cannot be read ({error})"
    if fault:
        raise InvalidValue(name, fault)


def _fault(column: sa.Column[Any], value: Any) -> str | None:
    name, kind = column.name, column.type
    if isinstance(kind, sa.BigInteger):
        least = 1 if name in ("seq", "turn_no", "summary_turn") else 0
        return None if type(value) is int and least <= value < _MOST else f"{value!r} is not a number that it can hold"
    if isinstance(kind, sa.Double):
        fits = type(value) in (int, float) and 0 < value <= sessions.MAX_TTL.total_seconds() and math.isfinite(value)
        return None if fits else f"{value!r} is not a time to live"
    if not isinstance(value, str):
        return f"is {type(value).__name__}, not text"
    if isinstance(kind, JsonColumn):
        return _json_fault(value, _KINDS.get((column.table.name, name)))
    if isinstance(kind, TimeColumn):
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            return f"{value} has no time zone"
        decode_time(moment)
    elif name == "key":
        checked_key(value)
    elif name == "id":
        encode_id(value)
    else:
        encode_text(value, name)
    return None


def _json_fault(text: str, kind: type | None) -> str | None:
    if "NaN" in text or "Infinity" in text:  # a text may hold the words
        json.loads(text, parse_constant=reject_constant)
    try:
        value = decode_json(text)
    except TypeError:  # what a quoted text may hold, and no text in UTF-8
        return "holds a lone surrogate"
    if kind is not None and not isinstance(value, kind):
        return f"is {type(value).__name__}, not a {kind.__name__}"
    return None if levels_within(value, _MOST_LEVELS) else f"is more than {_MOST_LEVELS} levels deep"


def _as_turn(row: Row) -> Turn:
    value = {name: row[name] for name in Turn.model_fields if row.get(name) is not None}
    decoded = {name: decode_json(value[name]) for name in ("usage", "metadata") if name in value}
    turn = _validated(Turn, value | decoded | {"created_at": decode_time(row["created_at"])})
    if turn.kind == "compaction":
        said = {
            "turn_no": turn.turn_no,
            "summary": [],
            "replaced_after": 0,
            "replaced_upto": turn.replaced_upto or 0,
            "replaced_messages": turn.metadata.get("original_message_count", 0),
            "discarded": turn.metadata.get("discarded", False),
            "created_at": turn.created_at,
        }
        _validated(Compaction, said)
    return turn


def _as_value(row: Row) -> None:
    try:
        checked_name(row["scope"] if "scope" in row else row["session_key"], row["name"])
    except InvalidKey as error:
        raise InvalidValue("name", str(error)) from None


def _as_message(row: Row) -> Message:
    try:
        return decode_messages(row["session_key"], [[row[name] for name in MESSAGE_FIELDS]])[0]
    except DamagedMessage as error:
        raise _refused(error) from None


def _refused(error: DamagedMessage) -> InvalidValue:
    return InvalidValue(error.field, str(error).split(";")[0])


def _validated(kind: type[Kind], value: dict[str, Any]) -> Kind:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise InvalidValue(".".join(map(str, fault["loc"])), fault["msg"]) from None
