"""Portable rows: decode stored rows for backups and archives, and validate them before they are restored.

The digests of a backup detect damage but not manipulation. Therefore a row that `Store` could not read is rejected
here.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from pydantic import BaseModel, ValidationError

from lango_store._operations.binds import CHANGE, MESSAGE, PAYLOAD, SESSION, TURN, VALUE
from lango_store._operations.log import counters
from lango_store._operations.rows import WAITING_FIELDS, encode_message, encode_object, encode_session, encode_waiting
from lango_store._operations.session.sessions import MAX_TTL
from lango_store._operations.session_tables import ASIDE, MESSAGES, TABLES, SessionTable
from lango_store._rows.encoding import (
    checked_key,
    checked_name,
    content_fault,
    decode_json,
    decode_time,
    encode_id,
    encode_json,
    encode_text,
)
from lango_store._rows.payloads import FAULTS, digest_of, fill, references
from lango_store._values.model import Compaction, Message, MessageRole, SessionInfo, Turn
from lango_store.errors import DamagedMessage, InvalidKey, InvalidValue, quoted
from lango_store.rows import transfer
from lango_store.rows.transfer import Row

Fields = dict[str, Any]
"""The columns of a row that are not NULL, by name. The text of a message is in `content`."""

Kind = TypeVar("Kind", bound=BaseModel)

SEE_DOCTOR: Final = ": run `lango-store doctor`"
_TOO_LARGE: Final = 2**62  # later numbers continue from a stored one, and must fit the column too


def decode_row(table: sa.Table, row: Row) -> Fields:
    """Decode a stored row; raise `DamagedMessage` for a column that cannot be read."""
    if table in MESSAGES and (fault := content_fault(row["text"], row["content"])):
        raise transfer.damaged(table, row, *fault)
    fields = {name: value for name, value in row.items() if value is not None}
    for name in TABLES[table].json:
        if name in fields:
            try:
                fields[name] = decode_json(fields[name])
            except ValueError as error:
                raise transfer.damaged(table, row, name, str(error)) from None
    if embedded := TABLES[table].stored.embedded:
        if not isinstance(fields[embedded], dict):
            raise transfer.damaged(table, row, embedded, "is not an object")
        parts = (value if name == embedded else {name: value} for name, value in fields.items())
        return {name: value for part in parts for name, value in part.items()}
    if table in MESSAGES and "text" in fields:
        return {"content" if name == "text" else name: value for name, value in fields.items()}
    return fields


_FIELDS: Final[dict[type[BaseModel], frozenset[str]]] = {
    kind: frozenset(kind.model_fields) for kind in (SessionInfo, Turn, Compaction, Message)
}


class RowEncoder:
    """Validates, encodes and counts the rows of one session. The session row must be the first."""

    def __init__(self, *, marks_copies: bool = True) -> None:
        """Create an encoder.

        Args:
            marks_copies: False for files of revisions before 0107, which do not mark the
                turns that a fork copied. The turns that are older than the fork are marked.
        """
        self._marks_copies = marks_copies
        self._session: Fields = {}
        self._counted: dict[str, Any] = dict.fromkeys(counters.NAMES, 0) | {"summary_turn": None}
        self._wanted: set[str] = set()
        self._payloads: set[str] = set()
        self._turns: dict[int, range] = {}
        self._misplaced: list[int] = []

    def encode(self, table: sa.Table, fields: Fields) -> Row:
        """Return the row to insert; raise `InvalidValue` for a column that `Store` could not read."""
        described = TABLES[table]
        row, needed = described.nulls, described.needed
        if embedded := described.stored.embedded:
            members = {name: value for name, value in fields.items() if name not in row}
            fields = {name: value for name, value in fields.items() if name in row} | {embedded: members}
        if not fields.keys() <= row.keys():
            raise InvalidValue(min(fields.keys() - row.keys()), f"is not a column of {table.name}")
        if not needed <= fields.keys():
            raise InvalidValue(min(needed - fields.keys()), "is missing")
        fields = dict(fields)
        for name in needed:
            if fields[name] is None and name != "value":
                raise InvalidValue(name, "is missing")
        for name in described.numbers:
            if name in fields and not (type(fields[name]) is int and 0 < fields[name] < _TOO_LARGE):
                _check_number(name, fields[name])
        for name in described.times:
            moment = fields.get(name)
            if moment is not None and not (type(moment) is datetime and moment.tzinfo is UTC):
                fields[name] = _encode_time(name, moment)
        if embedded:
            return row | self._encode_embedded(embedded, fields)
        encode = _ENCODERS.get(table)
        return row | (_encode_columns(described, fields) if encode is None else encode(self, fields))

    def encode_stored(self, table: sa.Table, row: Row) -> tuple[Row, Fields]:
        """Return a stored row re-encoded and decoded; raise `DamagedMessage` if `Store` could not read it."""
        fields = decode_row(table, row)
        try:
            return self.encode(table, fields), fields
        except InvalidValue as error:
            raise _damaged(table, row, error) from None

    def check_stored(self) -> None:
        """Raise `DamagedMessage` if a counter of a stored session is wrong, or a payload is missing."""
        try:
            self._check_counters()
        except InvalidValue as error:
            raise _damaged(SESSION, self._session, error) from None

    def corrections(self) -> dict[str, Any]:
        """Return the correct values of the counters that contradict the session's rows."""
        return counters.corrections(self._session, self._counted)

    def check(self) -> None:
        """Raise `InvalidValue` if rows of the session contradict each other, or a payload is missing."""
        self._check_counters()
        if self._misplaced:
            raise InvalidValue("turn_no", f"message {self._misplaced[0]} names a turn that does not contain it")

    def _check_counters(self) -> None:
        self.check_payloads()
        for name, counted in sorted(self.corrections().items()):
            raise InvalidValue(name, f"is {self._session[name]}, and the rows of the session say {counted}")

    def check_payloads(self) -> None:
        """Raise `InvalidValue` if a payload of the session is missing."""
        if missing := self._wanted - self._payloads:
            raise InvalidValue("payloads", f"{len(missing)} are missing, such as {min(missing)}")

    def _encode_session(self, fields: Fields) -> Row:
        _validated(SessionInfo, fields)
        _check_key(checked_key, fields["key"])
        ttl = fields.get("ttl_seconds")
        if ttl is not None and not (type(ttl) in (int, float) and 0 < ttl <= MAX_TTL.total_seconds()):
            raise InvalidValue("ttl_seconds", f"{quoted(ttl)} is not a time to live")
        self._session = dict.fromkeys(counters.NAMES) | fields
        described = TABLES[SESSION]
        texts = {name: fields.get(name) for name in described.texts if name not in SessionInfo.model_fields}
        of_rooms = {
            name: encode_id(text) if name in described.stored.ids else encode_text(text, name)
            for name, text in texts.items()
        }
        return encode_session(fields) | of_rooms | {"ttl_seconds": None if ttl is None else float(ttl)}

    def _encode_turn(self, fields: Fields) -> Row:
        turn = _validated(Turn, fields)
        if not 0 < turn.first_seq <= turn.last_seq + 1:
            raise InvalidValue("first_seq", f"is {turn.first_seq}, and last_seq is {turn.last_seq}")
        counted = self._counted
        if turn.kind == "compaction":
            facts = {
                "summary": [],
                "replaced_after": 0,
                "replaced_upto": turn.replaced_upto or 0,
                "replaced_messages": turn.metadata.get("original_message_count", 0),
                "discarded": turn.metadata.get("discarded", False),
            }
            _validated(Compaction, fields | facts)
            if turn.turn_no >= (counted["summary_turn"] or 0):
                counted |= {"summary_turn": turn.turn_no, "summarized_upto": turn.replaced_upto or 0}
        self._turns[turn.turn_no] = range(turn.first_seq, turn.last_seq + 1)
        counted["turn_count"] += 1
        counted["last_seq"] = max(counted["last_seq"], turn.last_seq)
        counted["last_turn_no"] = max(counted["last_turn_no"], turn.turn_no)
        encoded = {name: encode_object(fields.get(name), name) for name in ("usage", "metadata")}
        extra = encode_json(fields["extra"], "extra") if "extra" in fields else None
        copied_from = encode_text(fields.get("copied_from"), "copied_from")
        if not self._marks_copies and turn.created_at < self._session["created_at"]:
            copied_from = self._session.get("forked_from")
        return fields | encoded | {"extra": extra, "id": encode_id(turn.id), "copied_from": copied_from}

    def _encode_message(self, fields: Fields) -> Row:
        message = _validated(Message, fields)
        counted = self._counted
        if message.role is MessageRole.RECORD:
            counted["record_count"] += 1
        else:
            counted["message_count"] += 1
            counted["token_count"] += message.tokens or 0
        counted["last_seq"] = max(counted["last_seq"], message.seq)
        if message.turn_no is not None and message.seq not in self._turns.get(message.turn_no, ()):
            self._misplaced.append(message.seq)
        encoded = fields | encode_message(message) | {"taken_by": encode_id(fields.get("taken_by"))}
        if "payloads" in fields:
            try:
                fill(message.model_dump(), fields["payloads"])
                self._wanted |= {reference[0] for reference in references(fields["payloads"])}
            except FAULTS as error:
                raise InvalidValue("payloads", f"does not match the message: {error!r}") from None
            encoded["payloads"] = encode_json(fields["payloads"], "payloads")
        return encoded

    def _encode_aside(self, fields: Fields) -> Row:
        """Encode a message or turn that is set aside, without counting it."""
        other = RowEncoder()
        other._wanted = self._wanted
        return other._encode_turn(fields) if "kind" in fields else other._encode_message(fields)

    def _encode_payload(self, fields: Fields) -> Row:
        body = encode_text(fields["body"], "body")
        if body is None or digest_of(body) != fields["digest"]:
            raise InvalidValue("body", "does not match its digest")
        self._payloads.add(fields["digest"])
        return fields | {"body": body}

    def _encode_change(self, fields: Fields) -> Row:
        self._counted["last_seq"] = max(self._counted["last_seq"], fields["seq"])
        return _encode_columns(TABLES[CHANGE], fields)

    def _encode_embedded(self, name: str, fields: Fields) -> Row:
        """Encode a row with a message in one column, and with its id."""
        message = fields[name]
        if unknown := message.keys() - {*WAITING_FIELDS}:
            raise InvalidValue(min(unknown), "is not a field of a waiting message")
        encoded = encode_message(_validated(Message, fields | message))
        return fields | {"id": encoded["id"], name: encode_waiting(encoded)}

    def _encode_value(self, fields: Fields) -> Row:
        _check_key(checked_name, fields["session_key"], fields["name"])
        return _encode_columns(TABLES[VALUE], fields)


_ENCODERS: Final = {
    SESSION: RowEncoder._encode_session,
    TURN: RowEncoder._encode_turn,
    MESSAGE: RowEncoder._encode_message,
    CHANGE: RowEncoder._encode_change,
    PAYLOAD: RowEncoder._encode_payload,
    VALUE: RowEncoder._encode_value,
    **dict.fromkeys(ASIDE.values(), RowEncoder._encode_aside),
}
"""The encoders of tables whose columns depend on each other, or on other rows."""


def _encode_columns(described: SessionTable, fields: Fields) -> Row:
    """Encode each column by its type."""
    encoded: Row = {}
    if "scope" in described.names:
        _check_key(checked_name, fields["scope"], fields["name"])
    for name, (adapter, description) in described.types.items():
        try:
            adapter.validate_python(fields.get(name), strict=True)
        except ValidationError:
            if name in fields:
                raise InvalidValue(name, f"{quoted(fields[name])} is not {description}") from None
    for name in described.json:
        if name in fields:
            encoded[name] = encode_json(fields[name], name)
    for name in described.texts:
        if name in fields:
            encoded[name] = encode_id(fields[name]) if name in described.stored.ids else encode_text(fields[name], name)
    return fields | encoded


def _check_number(name: str, value: Any) -> None:
    least = 1 if name in ("seq", "turn_no", "summary_turn", "n", "message_seq", "result_seq") else 0
    if value is not None and not (type(value) is int and least <= value < _TOO_LARGE):
        raise InvalidValue(name, f"{quoted(value)} is not a number that it can hold")


def _check_key(check: Any, *keys: Any) -> None:
    try:
        check(*keys)
    except InvalidKey as error:
        raise InvalidValue("key" if len(keys) == 1 else "name", str(error)) from None


def _encode_time(name: str, value: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        if not isinstance(moment, datetime) or moment.tzinfo is None:
            raise ValueError(f"{quoted(value)} is not a time with a time zone")
        return decode_time(moment)
    except (ValueError, OverflowError) as error:
        raise InvalidValue(name, str(error)) from None


def _validated(kind: type[Kind], fields: Mapping[str, Any]) -> Kind:
    try:
        known = _FIELDS[kind]
        return kind.model_validate({name: value for name, value in fields.items() if name in known})
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise InvalidValue(".".join(map(str, fault["loc"])), fault["msg"]) from None


def _damaged(table: sa.Table, row: Mapping[str, Any], error: InvalidValue) -> DamagedMessage:
    reason = str(error).removeprefix(f"{error.field}: ")
    return transfer.damaged(table, row, error.field, f"{reason}{SEE_DOCTOR}")
