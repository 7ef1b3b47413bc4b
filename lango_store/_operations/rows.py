"""Rows: encode sessions, messages and turns for the database driver, and decode stored rows.

Encoding raises `InvalidValue` with the field that cannot be stored. Decoding raises `DamagedMessage` with the field
that cannot be read.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from lango_store._operations.binds import MESSAGE, SESSION, TURN
from lango_store._operations.sound_rows import (
    SESSION_FIELDS,
    SESSION_JSON,
    SESSION_NUMBERS,
    SESSION_TEXTS,
    SESSION_TIMES,
    decode_sound_session,
)
from lango_store._rows.columns import JsonColumn, as_stored
from lango_store._rows.encoding import (
    NO_CONTENT,
    content_fault,
    decode_json,
    decode_time,
    encode_content,
    encode_id,
    encode_json,
    encode_role,
    encode_text,
)
from lango_store._rows.payloads import FAULTS, fill
from lango_store._values.model import Message, MessageRole, SessionInfo, ToolCall, Turn
from lango_store.errors import DamagedMessage, DatabaseUnavailable, InvalidMessage, InvalidValue, quoted


def stored_json(key: str, seq: int, field: str, text: str) -> Any:
    """Decode a stored JSON text; `DamagedMessage` names the field that cannot be read."""
    try:
        return decode_json(text)
    except ValueError as error:
        raise DamagedMessage(key, seq_or_zero(seq), field, str(error)) from None


# Sessions

_COUNTERS: Final = [name for name in SESSION_NUMBERS if not SESSION.c[name].nullable]
SESSION_COLUMNS: Final = [as_stored(SESSION.c[name]) for name in SESSION_FIELDS]


def encode_session(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Encode fields of a session for the driver; `InvalidValue` names the field that cannot be stored."""
    row: dict[str, Any] = {}
    for name, value in fields.items():
        if name in SESSION_TEXTS:
            row[name] = encode_text(value, name)
        elif name in SESSION_JSON:
            kind = SESSION_JSON[name]
            if value is not None and not isinstance(value, kind):
                raise InvalidValue(name, f"is {type(value).__name__}, not a {kind.__name__}")
            row[name] = encode_json(value, name) if value else None
        else:
            row[name] = value
    return row


def decode_session(row: Sequence[Any]) -> dict[str, Any]:
    """Decode a row of `SESSION_COLUMNS` to the fields of `SessionInfo`."""
    value = {name: each for name, each in zip(SESSION_FIELDS, row, strict=True) if each is not None}
    key = _key_of(value)
    for name in _COUNTERS:
        whole_number(key, name, value.get(name))
    for name in SESSION_TIMES:
        if name in value:
            value[name] = stored_time(key, name, value[name])
    for name in SESSION_JSON:
        if name in value:
            value[name] = stored_json(key, 0, name, value[name])
    return value


def session_info(row: Sequence[Any]) -> SessionInfo:
    """Decode a row of `SESSION_COLUMNS`; raise `DamagedMessage` if a field is invalid."""
    return decode_sound_session(row) or session_value(SessionInfo, decode_session(row))


def stored_time(key: str, name: str, stored: Any) -> datetime:
    """Decode a time of a session; raise `DamagedMessage` if the stored value is not a time."""
    try:
        return decode_time(stored)
    except ValueError as error:
        raise DamagedMessage(key, 0, name, str(error)) from None


def _key_of(value: Mapping[str, Any]) -> str:
    key = value.get("key")
    return key if isinstance(key, str) else repr(key)


Stored = TypeVar("Stored", bound=BaseModel)


def session_value(kind: type[Stored], value: dict[str, Any], key: str | None = None) -> Stored:
    """Build a `kind`, such as `SessionInfo`, from a decoded row; raise `DamagedMessage` if a field is invalid.

    Pass the session's `key` if `kind` has no field for it.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise DamagedMessage(key or _key_of(value), 0, str(fault["loc"][0]), fault["msg"]) from None


def whole_number(key: str, name: str, stored: Any) -> int:
    """Return a stored counter of a session; raise `DamagedMessage` if it is not a whole number."""
    if type(stored) is not int:
        raise DamagedMessage(key, 0, name, f"{quoted(stored)} is not a whole number")
    return stored


# Messages

_ASSIGNED: Final = ("seq", "turn_no", "taken_by")
_HIDDEN: Final = ("session_key", "logged_at")

MESSAGE_INPUT_FIELDS: Final = tuple(each.name for each in MESSAGE.c if each.name not in (*_ASSIGNED, *_HIDDEN))
"""The columns of a message whose values come from the caller."""

MESSAGE_FIELDS: Final = (*_ASSIGNED, *MESSAGE_INPUT_FIELDS)
MESSAGE_COLUMNS: Final = [as_stored(MESSAGE.c[name]) for name in MESSAGE_FIELDS]
LISTING: Final = MESSAGE_FIELDS.index("payloads")
"""The position of the column `payloads` in a row of `MESSAGE_COLUMNS`."""

SEQ: Final = MESSAGE_FIELDS.index("seq")
TURN_NO: Final = MESSAGE_FIELDS.index("turn_no")

_JSON: Final = [each.name for each in MESSAGE.c if isinstance(each.type, JsonColumn) and each.name != "payloads"]
_NO_VALUES: Final = dict.fromkeys(MESSAGE_INPUT_FIELDS)
_EMPTY_IS_NULL: Final = frozenset(name for name, field in Message.model_fields.items() if field.default_factory)
_ENCODERS: Final = [
    (name, encode_json if name in _JSON else encode_text)
    for name in MESSAGE_INPUT_FIELDS
    if name not in ("id", "role", "text", "content", "tool_calls", "tokens", "created_at", "payloads")
]
REDACTED: Final = tuple(
    name
    for name in MESSAGE_INPUT_FIELDS
    if name not in ("id", "role", "author", "name", "tool_call_id", "tokens", "created_at", "model", "provider")
)
"""The columns that a redaction replaces: all that come from the caller, except those that identify the message."""

WAITING_FIELDS: Final = tuple(
    dict.fromkeys(
        name
        # The first ones in the order that backups have had since revision 0103.
        for name in ("role", "author", "name", "tool_call_id", "text", "content", "sent", *MESSAGE_INPUT_FIELDS)
        if name not in ("id", "created_at", "payloads")
    )
)
"""The columns of a message that the inbox stores in one object."""


def encode_message(message: Message) -> dict[str, Any]:
    """Encode a message for the driver; `InvalidMessage` names the field that cannot be stored."""
    if not isinstance(message, Message):
        convert = {str: "Message.user(text)", dict: "Message.from_openai(dict)"}.get(type(message), "Message(…)")
        raise InvalidMessage("message", f"is {type(message).__name__}, not a Message: pass {convert}")
    created_at = message.created_at
    if created_at is not None and (not isinstance(created_at, datetime) or created_at.tzinfo is None):
        raise InvalidMessage(
            "created_at", f"{quoted(created_at)} is not a time with a time zone: use datetime.now(UTC)"
        )
    tokens = message.tokens
    if tokens is not None and (not isinstance(tokens, int) or not 0 <= tokens < 2**53):
        raise InvalidMessage("tokens", f"{quoted(tokens)} is not a count: give 0 or more, or None")
    row: dict[str, Any] = _NO_VALUES.copy()
    values = message.__dict__
    try:
        content, role = values["content"], values["role"]
        if type(content) is str and content.isascii() and "\0" not in content:  # most contents
            row["text"] = content
        else:
            row["text"], row["content"] = encode_content(content)
        row["role"] = role._value_ if type(role) is MessageRole else encode_role(role)
        row["tokens"] = tokens
        if message.id is not None:
            row["id"] = encode_id(message.id)
        if message.tool_calls:
            row["tool_calls"] = _encoded_calls(message.tool_calls)
        if created_at is not None:
            row["created_at"] = _in_range(created_at)
        for name, encode in _ENCODERS:
            value = values[name]
            if value is not None and (value or name not in _EMPTY_IS_NULL):
                row[name] = encode(value, name)
    except InvalidValue as error:
        raise InvalidMessage.of(error) from None
    return row


def encode_redacted(reason: str | None, role: str) -> dict[str, Any]:
    """Return the new values of the columns that a redaction of a message with this role replaces, except `tokens`."""
    extra = {} if encode_text(reason, "reason") is None else {"redacted": reason}
    # Providers refuse a message without content. No prompt has records.
    content = None if role == MessageRole.RECORD.value else "(redacted)"
    row = encode_message(Message.user(content, extra=extra))
    return {name: row[name] for name in REDACTED}


def encode_waiting(row: Mapping[str, Any]) -> str:
    """Return an encoded message as one JSON object, without its id and its time."""
    members = {
        "content" if name == "text" else name: row[name] if name in _JSON else encode_json(row[name], name)
        for name in WAITING_FIELDS
        if row[name] is not None
    }
    return "{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}"


def decode_waiting(key: str, n: int, id: str | None, text: str, created_at: Any) -> Message:
    """Decode a row of the inbox; `DamagedMessage` names the row and the field that cannot be read."""
    try:
        value = stored_json(key, 0, "message", text)
        if not isinstance(value, dict):
            raise DamagedMessage(key, 0, "message", "is not an object")
        value["created_at"] = stored_time(key, "created_at", created_at)
        return session_value(Message, value if id is None else value | {"id": id}, key)
    except DamagedMessage as error:
        raise DamagedMessage(key, 0, f"inbox message {n}, {error.field}", error.reason) from None


def _in_range(created_at: datetime) -> datetime:
    try:
        return created_at.astimezone(UTC)
    except OverflowError:
        reason = f"{created_at} is outside the years 1 to 9999 in UTC: give a time within them"
        raise InvalidMessage("created_at", reason) from None


def _encoded_calls(calls: Sequence[ToolCall]) -> str:
    plain = [_plain_call(call) for call in calls]
    try:
        return encode_json(plain, "tool_calls")
    except InvalidValue:  # encode each value alone: each may use all nesting levels, and an error names its field
        return "[" + ",".join(_encoded_call(call, f"tool_calls[{n}]") for n, call in enumerate(plain)) + "]"


def _plain_call(call: ToolCall) -> dict[str, Any]:
    plain: dict[str, Any] = {"id": call.id, "name": call.name}
    fields_set = call.__pydantic_fields_set__
    if "arguments" in fields_set:
        plain["arguments"] = call.arguments
    if "output" in fields_set:
        plain["output"] = call.output
    if call.extra:
        plain["extra"] = call.extra
    return plain


def _encoded_call(plain: Mapping[str, Any], field: str) -> str:
    members = (f'"{name}":{encode_json(value, f"{field}.{name}")}' for name, value in plain.items())
    return "{" + ",".join(members) + "}"


def decode_checked(key: str, row: Sequence[Any], bodies: Mapping[str, str] | None) -> Message:
    """Decode any row of `MESSAGE_COLUMNS` and validate it; `DamagedMessage` names the damaged field.

    `bodies` holds the payloads by digest. Without `bodies`, the message has a `Payload` in the place of each.
    """
    stored: dict[str, Any] = {name: each for name, each in zip(MESSAGE_FIELDS, row, strict=True) if each is not None}
    seq, text, content = row[SEQ], stored.pop("text", None), stored.pop("content", None)
    listing, taken_by = stored.pop("payloads", None), stored.pop("taken_by", None)
    if isinstance(seq, str | bytes):  # pydantic would read a number from it
        raise DamagedMessage(key, 0, "seq", f"{quoted(seq)} is not a number")
    value = {name: stored_json(key, seq, name, each) if name in _JSON else each for name, each in stored.items()}
    if damaged := content_fault(text, content):
        raise DamagedMessage(key, seq_or_zero(seq), *damaged)
    if text is not None:
        value["content"] = text
    elif content != NO_CONTENT:
        value["content"] = stored_json(key, seq, "content", content)
    try:
        value["created_at"] = decode_time(stored.get("created_at", ""))
    except ValueError as error:
        raise DamagedMessage(key, seq_or_zero(seq), "created_at", str(error)) from None
    if listing is not None:
        try:
            fill(value, decode_json(listing), bodies)
        except FAULTS as error:
            reason = f"payload {error} is missing" if isinstance(error, KeyError) else f"cannot be read: {error}"
            raise DamagedMessage(key, seq_or_zero(seq), "payloads", reason) from None
    try:
        message = Message.model_validate(value)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise DamagedMessage(key, seq_or_zero(seq), ".".join(map(str, fault["loc"])), fault["msg"]) from None
    if type(taken_by) is str:
        vars(message)["_taken_by"] = taken_by
    return message


def decode_or_return_error(key: str, row: Sequence[Any], bodies: Mapping[str, str] | None) -> Message | DamagedMessage:
    """Decode a row as `decode_checked` does; return the error if the row is damaged."""
    try:
        return decode_checked(key, row, bodies)
    except DamagedMessage as error:
        return error


def seq_or_zero(seq: Any) -> int:
    """Return a stored seq for an error message, or 0 if it is not a whole number."""
    return seq if type(seq) is int else 0


# Turns

TURN_FIELDS: Final = tuple(name for name in Turn.model_fields if name not in ("messages", "replayed"))
TURN_COLUMNS: Final = [as_stored(TURN.c[name]) for name in TURN_FIELDS]
_TURN_JSON: Final = ("usage", "metadata")


def encode_object(value: Mapping[str, Any] | None, field: str) -> str | None:
    """Encode a dict; None and an empty dict become NULL. Raise `InvalidValue` for any other type."""
    if value is not None and not isinstance(value, dict):
        raise InvalidValue(field, f"is {type(value).__name__}, not a dict: convert it, for example with model_dump()")
    return encode_json(value, field) if value else None


def decode_turn(key: str, stored: Sequence[Any]) -> Turn:
    """Decode a row of `TURN_COLUMNS` without its messages; `DamagedMessage` names the damaged field."""
    row = dict(zip(TURN_FIELDS, stored, strict=True))
    value = {name: each for name, each in row.items() if each is not None}
    for name in _TURN_JSON:
        if name in value:
            value[name] = turn_json(key, row["turn_no"], name, value[name])
    try:
        return Turn.model_validate(value | {"created_at": decode_time(value["created_at"])})
    except (ValidationError, ValueError) as error:
        raise DamagedMessage(key, 0, f"turn {row['turn_no']}", str(error)) from None


def turn_json(key: str, turn_no: int, name: str, text: str) -> Any:
    """Decode a JSON column of a turn."""
    return stored_json(key, 0, f"{name} of turn {turn_no}", text)


Position = TypeVar("Position", int, str, tuple[str, str])


def next_start(after: Position, last: Position) -> Position:
    """Return the start of the next page.

    Raises:
        DatabaseUnavailable: The start does not advance, so that the read would never end.
            A damaged index can cause this.
    """
    if type(last) is not type(after) or last <= after:
        raise DatabaseUnavailable(
            f"the database returned rows out of order ({quoted(last)} after {quoted(after)}), it is damaged: "
            "run `lango-store doctor`, restore it from a backup"
        )
    return last
