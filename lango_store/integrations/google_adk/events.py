"""Lossless conversion between ADK's events and messages; events are compared as JSON.

Text and other parts become the content of a message; a single text part becomes a plain text. Function calls and
responses become tool calls. The usage of an event becomes the usage of a turn. The rest of the event is stored in
`extra`. An event without parts, such as a change of the state, becomes a record. So does an event that the conversion
would not restore exactly. A message that ADK has rewound becomes a record, and keeps its role in `extra`.
"""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, get_args
from urllib.parse import unquote

from google.adk.events import Event, EventActions
from google.adk.sessions import State
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from lango_store import DamagedMessage, InvalidMessage, Message, MessageRole, ToolCall
from lango_store.content import ADK, FAILED, Call, Result, parts
from lango_store.content.gemini import has_error
from lango_store.integrations.fields import escaped, same_json
from lango_store.rows import mapping, storable_id, storable_text

logger = logging.getLogger("lango_store")

NAME: Final = "google_adk"
"""The name under which the rest of an event is stored in `extra`."""

_REWOUND: Final = "google_adk_rewound"
"""The name under which the role of a message that was rewound is stored in `extra`."""

_ESCAPED: Final = re.compile("[%\0\ud800-\udfff]")
_EMPTY: Final = "%"
"""The name of a value whose key is empty. No other key can have this name, since `%` is escaped."""

_ROLES: Final = {MessageRole.USER: "user", MessageRole.TOOL: "user", MessageRole.MODEL: "model"}
_NOT_STORED: Final = (State.TEMP_PREFIX, "secret:")  # newer releases of ADK never store secrets
_FIELDS: Final = {"function_call": ("args", "arguments"), "function_response": ("response", "output")}
"""The kinds of parts that become tool calls: the name of the value in the part, and its name in the call."""


class NewEvent(NamedTuple):
    """An event about to be stored: its JSON, its message and its usage."""

    json: dict[str, Any]
    message: Message
    usage: dict[str, Any] | None

    def equals(self, message: Message, usage: Mapping[str, Any] | None) -> bool:
        """Return True if a stored message is this event."""
        return same_json(_event_json(message, usage), self.json)


# Events as messages


def new_event(event: Event) -> NewEvent:
    """Convert an event to a message. Raises `InvalidMessage` if the event cannot be written as JSON."""
    data = event_json(event)
    usage = mapping(data.get("usage_metadata")) or None
    columns = {"id", "author", "timestamp"} | ({"usage_metadata"} if usage else set())
    rest = {name: value for name, value in data.items() if name not in columns}
    new = NewEvent(data, _message(data, {}, role=MessageRole.RECORD, content=rest), usage)
    if mapping(rest.get("content")).get("parts"):
        with suppress(ValidationError):  # for example a call whose name is not a text; the event then becomes a record
            message = _message_of_parts(data, rest, usage)
            if new.equals(message, usage):
                new = new._replace(message=message)
    return new


def event_json(event: Event) -> dict[str, Any]:
    """Return an event as JSON without temporary or secret state. Raises `InvalidMessage` if that is impossible."""
    try:
        data = _fields_json(event)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage("event", f"cannot be written as JSON: {error}") from error
    for name in ("id", "author", "timestamp"):
        if (value := getattr(event, name)) is None:
            raise InvalidMessage(f"event.{name}", "is None")
        data[name] = as_json(value)
    if storable_id(event.id) is None:
        raise InvalidMessage("event.id", "must have 1 to 512 bytes, without NUL or lone surrogates")
    if delta := state_delta(data):
        data["actions"]["state_delta"] = {k: v for k, v in delta.items() if not k.startswith(_NOT_STORED)}
    return data


def _fields_json(model: BaseModel) -> dict[str, Any]:
    """Return the fields of a model of ADK as JSON, without those that are None or equal their default.

    Values in fields that accept any object are written whole, since the application reads them without its classes.
    """
    data = as_json(model.model_extra or {})
    for name, field in type(model).model_fields.items():
        value, default = getattr(model, name, None), field.get_default(call_default_factory=True)
        if value is None or (default is not None and value == default):
            continue
        data[name] = as_json(value) if _accepts_any(field.annotation) else _typed_json(value)
    return data


def _typed_json(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _fields_json(value)
    if type(value) is dict:
        return {key: _typed_json(item) for key, item in value.items()}
    return [_typed_json(item) for item in value] if type(value) is list else as_json(value)


def _accepts_any(annotation: Any) -> bool:
    return annotation in (Any, object, dict, list) or any(map(_accepts_any, get_args(annotation)))


def state_json(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state as JSON without temporary and secret keys. A value that is not JSON becomes its text."""
    return state_delta(event_json(Event(actions=EventActions(state_delta=dict(state)))))


def state_delta(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state changes in the JSON of an event."""
    return mapping(mapping(data.get("actions")).get("state_delta"))


def _message(data: Mapping[str, Any], rest: dict[str, Any], **fields: Any) -> Message:
    """Return a message with id, author and time of an event; `extra` gets `rest`, and values that fit no column."""
    author = storable_text(data["author"])
    others = {} if author == data["author"] else {"author": data["author"]}
    created_at = _created_at(data["timestamp"])
    if created_at is None or not same_json(created_at.timestamp(), data["timestamp"]):
        others["timestamp"] = data["timestamp"]
    fields["model"] = storable_text(data.get("model_version"))
    return Message(id=data["id"], author=author, created_at=created_at, extra={NAME: rest | others}, **fields)


def _created_at(timestamp: float | str) -> datetime | None:
    try:
        moment = datetime.fromtimestamp(float(timestamp), UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return moment if 2 <= moment.year <= 9998 else None  # other years may not exist in every time zone


def _message_of_parts(data: Mapping[str, Any], rest: dict[str, Any], usage: Mapping[str, Any] | None) -> Message:
    content = rest["content"]
    blocks: list[dict[str, Any]] = []
    calls: list[ToolCall] = []
    layout: list[dict[str, Any] | None] = []  # None for a block, the rest of the part for a call
    for part in content["parts"]:
        if kind := next((kind for kind in _FIELDS if kind in part), None):
            call, remaining = _call(part, kind)
            calls.append(call)
            layout.append(remaining)
        else:
            blocks.append(part)
            layout.append(None)
    adk_role = content.get("role", "user" if data["author"] == "user" else "model")
    is_response = bool(calls) and all(call.answered for call in calls)
    role = MessageRole.TOOL if is_response else MessageRole.USER if adk_role == "user" else MessageRole.MODEL
    structure = {} if content.get("role") == _ROLES[role] else {"role": content.get("role")}
    if layout != [None] * len(blocks) + [{}] * len(calls):
        structure["parts"] = layout
    rest = {name: value for name, value in rest.items() if name != "content"}
    if structure:
        rest["content"] = structure
    is_text = len(blocks) == 1 and blocks[0].keys() == {"text"}
    return _message(
        data,
        rest,
        role=role,
        content=blocks[0]["text"] if is_text else blocks or None,
        tool_calls=calls,
        tokens=mapping(usage).get("candidates_token_count") if role is MessageRole.MODEL else None,
    )


def _call(part: Mapping[str, Any], kind: str) -> tuple[ToolCall, dict[str, Any]]:
    """Convert a part to a tool call; return the call and the rest of the part."""
    body = dict(part[kind])
    adk_name, call_name = _FIELDS[kind]
    value = {call_name: body.pop(adk_name)} if adk_name in body else {}
    extra = dict(FAILED) if has_error(value.get("output")) else {}
    call = ToolCall(id=body.pop("id", ""), name=body.pop("name", ""), extra=extra, **value)
    return call, {name: each for name, each in part.items() if name != kind} | ({kind: body} if body else {})


# Messages as events


def is_event(message: Message) -> bool:
    """Return True if a message is an event of ADK: every message is one, except records of other programs."""
    return message.role is not MessageRole.RECORD or NAME in message.extra or _REWOUND in message.extra


def event_of(key: str, message: Message, usage: Mapping[str, Any] | None) -> Event:
    """Convert a message to an event. Raises `DamagedMessage` if its `extra` does not match the message."""
    try:
        return Event.model_validate(_event_json(message, usage))
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration) as error:
        fault = repr(error).partition("\n")[0]  # the following lines of pydantic's error contain message content
        raise DamagedMessage(key, message.seq, "extra", f"does not make an event: {fault}") from None


def _event_json(message: Message, usage: Mapping[str, Any] | None) -> dict[str, Any]:
    message = _restored(message)
    data: dict[str, Any] = {"id": message.id or f"seq:{message.seq}", "author": message.author or ""}
    if message.created_at is not None:
        data["timestamp"] = message.created_at.timestamp()
    if NAME not in message.extra:
        return data | _foreign_json(message)
    rest = message.extra[NAME]
    if usage:
        data["usage_metadata"] = usage
    if message.role is MessageRole.RECORD:
        return {**data, **message.content, **rest}
    structure = rest.get("content", {})
    role = structure.get("role", _ROLES.get(message.role, "user"))
    content = {"parts": _parts(message, structure.get("parts"))} | ({} if role is None else {"role": role})
    return data | rest | {"content": content}


def _parts(message: Message, layout: list[dict[str, Any] | None] | None) -> list[Any]:
    content = message.content
    blocks = [] if content is None else [{"text": content}] if isinstance(content, str) else list(content)
    if layout is None:
        return blocks + [_part(call, {}) for call in message.tool_calls]
    if len(layout) != len(blocks) + len(message.tool_calls):
        raise ValueError("the number of parts differs from the message")
    block, call = iter(blocks), iter(message.tool_calls)
    return [next(block) if rest is None else _part(next(call), rest) for rest in layout]


def _part(call: ToolCall, rest: Mapping[str, Any]) -> dict[str, Any]:
    kind = "function_response" if call.answered else "function_call"
    adk_name, call_name = _FIELDS[kind]
    body = {name: value for name, value in (("id", call.id), ("name", call.name)) if value}
    if call_name in call.model_fields_set:
        body[adk_name] = getattr(call, call_name)
    return {**rest, kind: body | rest.get(kind, {})}


# Rewinds


def changed_by_rewinds(messages: Sequence[Message], events: Sequence[Event]) -> list[Message]:
    """Return messages of a log with new roles, so that those that ADK has rewound are records, and only those.

    A rewind drops the events from the first one of an invocation up to itself, including earlier rewinds. So it may
    also bring back what an earlier rewind dropped.
    """
    first: dict[str, int] = {}
    for position, event in enumerate(events):
        first.setdefault(event.invocation_id, position)
    changed: list[Message] = []
    dropped_from = len(events)
    for position in reversed(range(len(events))):
        message, target = messages[position], events[position].actions.rewind_before_invocation_id
        if target and position < dropped_from:
            dropped_from = min(position, first.get(target, position))
        if position < dropped_from:
            if _REWOUND in message.extra:
                changed.append(_restored(message))
        elif message.role is not MessageRole.RECORD:
            extra = {**message.extra, _REWOUND: message.role.value}
            changed.append(message.model_copy(update={"role": MessageRole.RECORD, "extra": extra}))
    return changed


def _restored(message: Message) -> Message:
    """Return a message from before it was rewound."""
    if _REWOUND not in message.extra:
        return message
    extra = dict(message.extra)
    return message.model_copy(update={"role": MessageRole(extra.pop(_REWOUND)), "extra": extra})


# Messages of other programs as events


def _foreign_json(message: Message) -> dict[str, Any]:
    """Return the JSON of an event, without id and time, for a message of another program."""
    role = "model" if message.role.canonical is MessageRole.ASSISTANT else "user"
    parts = _foreign_parts(message)
    return {"author": message.author or role, "content": {"role": role, "parts": parts} if parts else None}


def _foreign_parts(message: Message) -> list[dict[str, Any]]:
    role = "assistant" if message.role.canonical is MessageRole.ASSISTANT else "user"
    found = parts(message)
    ids = [part.id for part in found if isinstance(part, Call | Result)]
    blocks = ADK.write(found, role, lambda _: None)
    answers = [block.get("function_call") or block.get("function_response") for block in blocks]
    for body, id in zip(filter(None, answers), ids, strict=True):
        if id:
            body["id"] = id
    return blocks


# State


def values_by_prefix(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a state as values by name, for each prefix of keys. The prefix of the session's own values is ""."""
    values: dict[str, dict[str, Any]] = {}
    for key, value in state.items():
        prefix = next((each for each in (State.APP_PREFIX, State.USER_PREFIX) if key.startswith(each)), "")
        values.setdefault(prefix, {})[escaped(key.removeprefix(prefix), _ESCAPED) or _EMPTY] = value
    return values


def keyed(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return values as entries of a state, with a prefix before each key."""
    return {
        prefix + ("" if name == _EMPTY else unquote(name, errors="surrogatepass")): value
        for name, value in values.items()
    }


def as_json(value: Any) -> Any:
    """Return a value as JSON: unchanged, or converted by pydantic, or else as text, which logs a warning."""
    kind = type(value)  # pydantic alone would replace a lone surrogate in a key, and write NaN as null
    if value is None or kind in (str, bool, int):
        return value
    if kind is dict:
        return {key if type(key) is str else _as_key(key): as_json(item) for key, item in value.items()}
    if kind in (list, tuple):
        return [as_json(item) for item in value]
    if kind in (set, frozenset):
        return sorted(map(as_json, value), key=repr)  # the same in each process, for events that are repeated
    if isinstance(value, BaseModel):
        return as_json(_model_json(value))
    if kind is float:
        return value if math.isfinite(value) else _as_text(value)
    return to_jsonable_python(value, bytes_mode="base64", fallback=_as_text)


def _model_json(model: BaseModel) -> Any:
    """Return a model as its own JSON, which restores it, or as Python values if it contains no valid Unicode."""
    try:
        return model.model_dump(mode="json", fallback=_as_text)
    except UnicodeError:
        return model.model_dump()


def _as_key(key: Any) -> str:
    (written,) = to_jsonable_python({key: None}, bytes_mode="base64", fallback=_as_text)
    return str(written)


def _as_text(value: object) -> str:
    logger.warning("a value of type %s is not JSON: its text is stored", type(value).__name__)
    return str(value)
