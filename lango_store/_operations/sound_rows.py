"""Sound rows of messages and sessions, decoded without pydantic: the types of the columns show which fields are valid.

The result is what validation would return, and takes less time. A row with payloads, or with any value whose type is
not enough to tell, is left to `rows`, which validates it and names the fault.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_core import from_json

from lango_store._rows.encoding import NO_CONTENT
from lango_store._values.model import Message, MessageRole, SessionInfo, ToolCall
from lango_store._values.value import built, set_extra, set_fields_set, set_private, set_values

_ROLES: Final[dict[Any, MessageRole]] = {role.value: role for role in MessageRole}
_EMPTY: Final = dict.fromkeys(Message.model_fields) | {"replayed": False}
_decode_calls: Final = TypeAdapter(list[ToolCall]).validator.validate_json


def decode_sound(rows: Sequence[Any], decode_checked: Callable[[Any], Message]) -> list[Message]:
    """Decode rows of `MESSAGE_COLUMNS`; call `decode_checked` for rows that have payloads or may be damaged."""
    # One loop without calls: it runs for every message that is read.
    messages: list[Message] = []
    for row in rows:
        seq, turn_no, taken_by, id, role, author, name, call_id, text, content, calls, tokens, extra, *rest = row
        moment, sent, payloads, model, provider, request = rest
        if payloads is not None:
            messages.append(decode_checked(row))
            continue
        values: dict[str, Any] = _EMPTY.copy()
        fields = {"seq", "role", "content", "created_at"}
        try:
            if type(moment) is str:
                moment = datetime.fromisoformat(moment)
            values["seq"], values["role"], values["created_at"] = seq, _ROLES[role], moment
            sound = type(seq) is int and seq >= 0 and moment.tzinfo is UTC
            if content is None:
                values["content"] = text
                sound &= type(text) is str
            else:
                values["content"] = from_json(content)
                sound &= text is None and type(content) is str
                if content == NO_CONTENT:
                    fields.remove("content")
            if turn_no is not None:
                values["turn_no"] = turn_no
                fields.add("turn_no")
                sound &= type(turn_no) is int
            if type(taken_by) is str:
                values["_taken_by"] = taken_by
            if id is not None:
                values["id"] = id
                fields.add("id")
                sound &= type(id) is str and id != ""
            if author is not None:
                values["author"] = author
                fields.add("author")
                sound &= type(author) is str
            if name is not None:
                values["name"] = name
                fields.add("name")
                sound &= type(name) is str
            if call_id is not None:
                values["tool_call_id"] = call_id
                fields.add("tool_call_id")
                sound &= type(call_id) is str
            if tokens is not None:
                values["tokens"] = tokens
                fields.add("tokens")
                sound &= type(tokens) is int and 0 <= tokens < 2**53
            if sent is not None:
                values["sent"] = from_json(sent)
                fields.add("sent")
                sound &= type(sent) is str
            if model is not None:
                values["model"] = model
                fields.add("model")
                sound &= type(model) is str
            if provider is not None:
                values["provider"] = provider
                fields.add("provider")
                sound &= type(provider) is str
            if request is not None:
                values["request"] = request
                fields.add("request")
                sound &= type(request) is str
            values["tool_calls"] = []
            if calls is not None:
                values["tool_calls"] = _decode_calls(calls)
                fields.add("tool_calls")
                sound &= type(calls) is str
            values["extra"] = {}
            if extra is not None:
                values["extra"] = from_json(extra)
                fields.add("extra")
                sound &= type(extra) is str and type(values["extra"]) is dict
        except (AttributeError, KeyError, TypeError, ValueError):
            sound = False
        if sound:
            message = object.__new__(Message)
            set_values(message, values)
            set_fields_set(message, fields)
            set_extra(message, None)
            set_private(message, None)
            messages.append(message)
        else:
            messages.append(decode_checked(row))
    return messages


SESSION_FIELDS: Final = tuple(SessionInfo.model_fields)
"""The names of `SESSION_COLUMNS`, in their order."""

SESSION_TEXTS: Final = ("agent_id", "user_id", "title", "model", "forked_from", "hold")
SESSION_TIMES: Final = ("created_at", "updated_at", "expires_at")
SESSION_JSON: Final[dict[str, type]] = {"settings": dict, "metadata": dict, "tools": list}
"""The columns with JSON, each with the type of its value."""

_TIME: Final = (str, datetime)
_TYPES: Final[dict[str, tuple[type, ...]]] = (
    dict.fromkeys(("key", *SESSION_TEXTS, *SESSION_JSON), (str,))
    | dict.fromkeys(SESSION_TIMES, _TIME)
    | {"ttl_seconds": (float,)}
)
_COLUMNS: Final = [(name, _TYPES.get(name, (int,)), SESSION_JSON.get(name)) for name in SESSION_FIELDS]
SESSION_NUMBERS: Final = tuple(name for name in SESSION_FIELDS if name not in _TYPES)
"""All other columns: whole numbers."""

_NO_SESSION: Final = dict.fromkeys(SessionInfo.model_fields)
_REQUIRED: Final = {
    name for name, field in SessionInfo.model_fields.items() if field.default is not None and not field.default_factory
}


def decode_sound_session(row: Sequence[Any]) -> SessionInfo | None:
    """Decode a row of `SESSION_COLUMNS`; return None if it may be damaged."""
    values: dict[str, Any] = _NO_SESSION | {"settings": {}, "metadata": {}, "tools": []}
    fields: set[str] = set()
    try:
        for (name, types, kind), value in zip(_COLUMNS, row, strict=True):
            if value is None:
                continue
            if type(value) not in types:
                return None
            if types is _TIME:
                value = value if type(value) is datetime else datetime.fromisoformat(value)
                if value.tzinfo is not UTC:
                    return None
            elif kind is not None:
                value = from_json(value)
                if type(value) is not kind:
                    return None
            values[name] = value
            fields.add(name)
    except ValueError:
        return None
    if not fields >= _REQUIRED:
        return None
    return built(SessionInfo, values, fields)
