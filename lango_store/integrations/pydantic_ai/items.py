"""A message of pydantic-ai as the JSON that it dumps, and as the fields of ours: text, tool calls, tokens, time.

What our fields do not say stands as a difference under `extra["pydantic_ai"]`. It is one from constants, which must not
change here: what is stored reads alike whatever the framework's own defaults have become. `parts` are in their order,
each as `[kind, fields, absent]`, or whole if our fields say nothing of it; left out where the fields say it all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from lango_store._values.model import Message, MessageRole, ToolCall, as_text
from lango_store.interchange.fidelity import mapping, same

NAME: Final = "pydantic_ai"
"""Under which name the adapter keeps what is its own: in a message's `extra`, and among a session's values."""

Json = dict[str, Any]

_REQUEST: Final[Json] = {
    "kind": "request",
    "instructions": None,
    "run_id": None,
    "conversation_id": None,
    "metadata": None,
    "state": "complete",
}
_RESPONSE: Final[Json] = {
    "kind": "response",
    "model_name": None,
    "model_id": None,
    "provider_name": None,
    "provider_url": None,
    "canonical_system": None,
    "provider_details": None,
    "provider_response_id": None,
    "finish_reason": None,
    "run_id": None,
    "conversation_id": None,
    "metadata": None,
    "workspace_ref": None,
    "history_digest": None,
    "failed_attempts": None,
    "state": "complete",
}
_USAGE: Final[Json] = {
    "input_tokens": 0,
    "cache_write_tokens": 0,
    "cache_write_1h_tokens": 0,
    "cache_read_tokens": 0,
    "output_reasoning_tokens": 0,
    "input_audio_tokens": 0,
    "cache_audio_read_tokens": 0,
    "output_audio_tokens": 0,
    "audio_seconds": 0.0,
    "details": {},
    "cost": None,
}
_PROVIDER: Final[Json] = {"provider_name": None, "provider_details": None}
_CALL: Final[Json] = {"tool_kind": None, "id": None, **_PROVIDER}
_RETURN: Final[Json] = {"tool_kind": None, "metadata": None, "outcome": "success"}

_SAID: Final[dict[str, Json]] = {
    "text": {"id": None, "citations": None, **_PROVIDER},
    "user-prompt": {},
    "system-prompt": {"dynamic_ref": None, "context_id": None, "scope": "conversation", "metadata": None},
}
_ASKED: Final[dict[str, Json]] = {"tool-call": _CALL, "builtin-tool-call": _CALL}
_ANSWERED: Final[dict[str, Json]] = {
    "tool-return": _RETURN | {"retry": None},
    "builtin-tool-return": _RETURN | _PROVIDER,
}
_UNTIMED: Final = frozenset({"text", *_ASKED})
"""The parts without a time of their own."""

_SPEECH: Final = {
    MessageRole.ASSISTANT: "text",
    MessageRole.USER: "user-prompt",
    MessageRole.TOOL: "user-prompt",
    MessageRole.SYSTEM: "system-prompt",
}
"""Which parts a message of this role has its content from."""

_ALIKE: Final = {
    MessageRole.MODEL: MessageRole.ASSISTANT,
    MessageRole.FUNCTION: MessageRole.TOOL,
    MessageRole.DEVELOPER: MessageRole.SYSTEM,
}
"""What the roles are that no item of the framework's has."""

_LATER: Final = object()
"""A time that the database gives when the message is stored: the item's is another one."""


class Fields(NamedTuple):
    """What a stored message says of an item."""

    role: MessageRole
    content: Any
    calls: Sequence[Json]
    tokens: int | None
    own: Json
    time: str


# Into our fields


def message_of(item: Json, id: str) -> Message:
    """Return the message that stores a dumped item; an item that our fields cannot give back stands in it whole."""
    message = _Taken(item).message(id)
    time = "" if message.created_at is None else time_text(message.created_at)
    calls = [call.model_dump() for call in message.tool_calls]
    fields = Fields(message.role, message.content, calls, message.tokens, message.extra.get(NAME, {}), time)
    if same(item_of(fields), item):
        return message
    return Message(role=message.role, tokens=message.tokens, id=id, extra={NAME: {"whole": item}})


class _Taken:
    """An item of which our fields have taken what they can hold."""

    def __init__(self, item: Json) -> None:
        parts = [part for part in _listed(item.get("parts")) if isinstance(part, dict)]
        self._item = item
        self._role = _role_of(item, parts)
        self._speech = _SPEECH[self._role]
        self._is_only = sum(part.get("part_kind") == self._speech for part in parts) == 1
        self._created_at = _time_of(item.get("timestamp"))
        self._time = _LATER if self._created_at is None else item["timestamp"]
        self._said: list[Any] = []
        self._calls: list[ToolCall] = []
        self._layout = [self._left_of(part) for part in parts]

    def message(self, id: str) -> Message:
        """Return the message, in its `extra` what is left of the item."""
        is_response = self._role is MessageRole.ASSISTANT
        content = self._said[0] if len(self._said) == 1 else [_block(text) for text in self._said] or None
        is_implied = self._layout == _implied(self._role, content, self._calls) and not isinstance(content, list)
        own: Json = {} if is_implied else {"parts": self._layout}
        rest = {name: value for name, value in self._item.items() if name != "parts"}
        tokens = None
        if is_response:
            usage = mapping(rest.pop("usage", None))
            tokens = _count(usage.get("output_tokens"))
            own |= _named("usage", _difference(usage, _USAGE | {"output_tokens": tokens}))
        own |= _named("item", _difference(rest, (_RESPONSE if is_response else _REQUEST) | {"timestamp": self._time}))
        return Message(
            role=self._role,
            content=content,
            tool_calls=self._calls,
            tokens=tokens,
            id=id,
            extra={NAME: own} if own else {},
            created_at=self._created_at,
        )

    def _left_of(self, part: Json) -> Any:
        """Take what our fields hold of a part, and return the rest: `[kind, fields, absent]`, or the part as it is."""
        kind = part.get("part_kind")
        content = part.get("content")
        if kind == self._speech and (isinstance(content, str) or (self._is_only and _is_blocks(content))):
            self._said.append([_block(each) for each in content] if isinstance(content, list) else content)
            return [kind, *_difference(part, _base(kind, self._time) | {"content": content})]
        if not isinstance(kind, str) or not _names_call(part):
            return part
        named = {"tool_name": part["tool_name"], "tool_call_id": part["tool_call_id"]}
        if kind in _ASKED and "args" in part:
            self._calls.append(ToolCall(id=part["tool_call_id"], name=part["tool_name"], arguments=part["args"]))
            return [kind, *_difference(part, _base(kind, self._time) | named | {"args": part["args"]})]
        if kind not in _ANSWERED or "content" not in part or not self._answer(part):
            return part
        named["tool_call_id"] = self._calls[-1].id  # the last one is answered, unless the part says which
        return [kind, *_difference(part, _base(kind, self._time) | named | {"content": content})]

    def _answer(self, part: Json) -> bool:
        """Take a tool's answer, in a response as that of the call it is for; False if there is none."""
        if self._role is not MessageRole.ASSISTANT:
            self._calls.append(ToolCall(id=part["tool_call_id"], name=part["tool_name"], output=part["content"]))
            return True
        for place, call in enumerate(self._calls):
            if call.id == part["tool_call_id"]:
                if call.answered or call.name != part["tool_name"]:
                    return False
                self._calls[place] = call.model_copy(update={"output": part["content"]})
                return True
        return False


# Out of our fields


def item_of(fields: Fields) -> Json:
    """Return the item that a stored message holds; of a message that something else stored, what it says."""
    own = fields.own
    if "whole" in own:
        return mapping(own["whole"])
    is_response = fields.role is MessageRole.ASSISTANT
    item = (_RESPONSE if is_response else _REQUEST) | {"timestamp": fields.time}
    if is_response:
        item["usage"] = _restored(_USAGE | {"output_tokens": fields.tokens or 0}, own.get("usage"))
    layout = own.get("parts")
    given = _Given(fields, _implied(fields.role, fields.content, fields.calls) if layout is None else layout)
    return _restored(item, own.get("item")) | {"parts": given.parts}


class _Given:
    """The parts of an item, made of a message's fields and what was left of each."""

    def __init__(self, fields: Fields, layout: Any) -> None:
        self._fields = fields
        self._layout = [left for left in _listed(layout) if left]
        said = [left[0] for left in self._layout if isinstance(left, list) and left[0] == _SPEECH[fields.role]]
        self._said = iter([fields.content] if len(said) == 1 else map(_unblocked, _listed(fields.content)))
        self._calls = iter(fields.calls)
        self._asked: list[Json] = []
        self.parts = [self._part(left) if isinstance(left, list) else left for left in self._layout]

    def _part(self, left: list[Any]) -> Json:
        kind, *difference = left
        base = _base(kind, self._fields.time)
        if kind in _SAID:
            content = next(self._said, None)
            base["content"] = list(map(_unblocked, content)) if isinstance(content, list) else content
            return _restored(base, difference)
        if kind in _ANSWERED and self._fields.role is MessageRole.ASSISTANT:
            call = self._answered(difference)
        else:
            call = next(self._calls, {})
            self._asked.append(call)
        base |= {"tool_name": call.get("name"), "tool_call_id": call.get("id")}
        base |= {"args": call.get("arguments")} if kind in _ASKED else {"content": call.get("output")}
        return _restored(base, difference)

    def _answered(self, difference: Sequence[Any]) -> Json:
        """Return the call that a response has the answer to: the last one, unless the answer says which."""
        id = mapping(difference[0]).get("tool_call_id") if difference else None
        found = [call for call in self._asked if id is None or call.get("id") == id] or [{}]
        return found[-1] if id is None else found[0]


def foreign(fields: Fields, tool_call_id: str | None, name: str | None) -> Fields:
    """Return a message that something else stored as ours would be: what it says as text, a tool's answer as a call."""
    role = _ALIKE.get(fields.role, fields.role)
    content, calls = fields.content, fields.calls
    if role is MessageRole.TOOL:
        calls = [call for call in calls if "output" in call]
        if not calls and (tool_call_id or content is not None):
            calls, content = [{"id": tool_call_id or "", "name": name or "", "output": content}], None
    return fields._replace(role=role, content=None if content is None else as_text(content), calls=calls)


# Parts and their differences


def _base(kind: str, time: Any) -> Json:
    base = {"part_kind": kind, **(_SAID.get(kind) or _ASKED.get(kind) or _ANSWERED.get(kind) or {})}
    return base if kind in _UNTIMED else base | {"timestamp": time}


def _implied(role: MessageRole, content: Any, calls: Sequence[Any]) -> list[list[str]]:
    """Return the parts of a message that says nothing of them."""
    called = "tool-call" if role is MessageRole.ASSISTANT else "tool-return"
    return [[_SPEECH[role]]] * (content is not None) + [[called]] * len(calls)


def _difference(original: Mapping[str, Any], base: Mapping[str, Any]) -> list[Any]:
    """Return what turns a base into the original: fields to set, then names to leave out; nothing if they are alike."""
    fields = {
        name: value
        for name, value in original.items()
        if name not in base or base[name] is _LATER or not same(value, base[name])
    }
    absent = [name for name in base if name not in original]
    return [fields, absent] if absent else [fields] if fields else []


def _restored(base: Json, difference: Any) -> Json:
    fields, absent = (*_listed(difference), {}, [])[:2]
    return {name: value for name, value in (base | mapping(fields)).items() if name not in absent}


def _named(name: str, difference: list[Any]) -> Json:
    return {name: difference} if difference else {}


# What is in an item


def _role_of(item: Json, parts: Sequence[Json]) -> MessageRole:
    if item.get("kind") == "response":
        return MessageRole.ASSISTANT
    kinds = {part.get("part_kind") for part in parts}
    if "tool-return" in kinds:
        return MessageRole.TOOL
    return MessageRole.SYSTEM if "system-prompt" in kinds and "user-prompt" not in kinds else MessageRole.USER


def _names_call(part: Json) -> bool:
    return isinstance(part.get("tool_call_id"), str) and isinstance(part.get("tool_name"), str)


def _is_blocks(content: Any) -> bool:
    """Whether a prompt is texts and other things, which come back as they are."""
    return isinstance(content, list) and all(
        isinstance(each, str) or (isinstance(each, dict) and _unblocked(each) is each) for each in content
    )


def _block(part: Any) -> Any:
    return {"type": "text", "text": part} if isinstance(part, str) else part


def _unblocked(block: Any) -> Any:
    """Return the text of a block that is nothing else, any other block as it is."""
    is_text = isinstance(block, dict) and block.keys() == {"type", "text"} and block["type"] == "text"
    return block["text"] if is_text and isinstance(block["text"], str) else block


def _count(tokens: Any) -> int:
    """Return a number of tokens that the column holds, 0 for any other value."""
    return tokens if type(tokens) is int and 0 <= tokens < 2**53 else 0


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _time_of(text: Any) -> datetime | None:
    """Return the time that is written so, None for any other value."""
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
        return found if found is not None and time_text(found) == text else None
    except (ValueError, OverflowError):
        return None


def time_text(time: datetime) -> str:
    """Write a time as the framework does."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
