"""ADK's events as messages and back: what our fields say is in them, the rest in `extra`; each event comes back equal.

Text and other parts are a message's content as Gemini writes them, one text alone as that text. Calls and responses of
functions are its tool calls. What it cost is the usage of a turn. An event that says nothing is a record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from google.adk.events import Event, EventActions
from google.adk.sessions import State
from pydantic import TypeAdapter, ValidationError

from lango_store import DamagedMessage, InvalidMessage, Message, MessageRole, ToolCall
from lango_store.integrations.equality import same_json
from lango_store.integrations.fields import mapping, storable_id, storable_text
from lango_store.integrations.google_adk.foreign import foreign_json
from lango_store.integrations.google_adk.state import as_json

NAME: Final = "google_adk"
"""The name of the rest of an event in a message's `extra`."""

_EARLIEST: Final = datetime(2, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(9998, 12, 31, tzinfo=UTC)

_DEFAULTS: Final[dict[str, Any]] = {
    name: value
    for name, value in Event().model_dump(mode="json", exclude_none=True).items()
    if name in ("actions", "node_info")
}
"""What every event's JSON says of nothing; left out."""

_ROLES: Final = {
    MessageRole.USER: "user",
    MessageRole.TOOL: "user",
    MessageRole.FUNCTION: "user",
    MessageRole.MODEL: "model",
    MessageRole.ASSISTANT: "model",
}
_KINDS: Final = {"function_call": "arguments", "function_response": "output"}
_WORDS: Final = {"function_call": "args", "function_response": "response"}
_BLOCK, _CALL = "b", "c"

_events: Final = TypeAdapter(list[Event])


class Stored(NamedTuple):
    """An event about to be stored: its JSON, the message that it becomes, and what it cost."""

    json: dict[str, Any]
    message: Message
    usage: dict[str, Any] | None

    @property
    def delta(self) -> dict[str, Any]:
        """What it changes of the state."""
        return _delta(self.json)

    def renamed(self) -> Stored:
        """Return it under an id made of all that it says, for an event whose own id another one has."""
        text = json.dumps(self.json, sort_keys=True)
        digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
        extra = {**self.message.extra, NAME: {**self.message.extra[NAME], "id": self.json["id"]}}
        return self._replace(message=self.message.model_copy(update={"id": digest, "extra": extra}))

    def is_in(self, message: Message, usage: Mapping[str, Any] | None) -> bool:
        """Whether a stored message is this event."""
        return same_json(event_json(message, usage or {}), self.json)

    def is_the_same(self, event: Event) -> bool:
        """Whether an event would be stored as this one."""
        return same_json(stored(event).json, self.json)


# An event becomes a message


def stored(event: Event) -> Stored:
    """Return what is stored of an event; `InvalidMessage` for what cannot be written as JSON."""
    data = _dumped(event)
    try:
        found = _typed(data)
        if found.is_in(found.message, found.usage):
            return found if found.message.id else found.renamed()
    except ValidationError:
        pass  # of our own value: a call whose name is not a text, say
    usage, rest = _usage(data)
    found = Stored(data, _message(MessageRole.RECORD, data, content=rest, kept={}), usage)
    return found if found.message.id else found.renamed()


def state_json(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state as JSON, without what is temporary; a value that is not JSON becomes its text, with a warning."""
    return _delta(_dumped(Event(actions=EventActions(state_delta=dict(state)))))


def _delta(data: Mapping[str, Any]) -> dict[str, Any]:
    return mapping(mapping(data.get("actions")).get("state_delta"))


def _dumped(event: Event) -> dict[str, Any]:
    try:
        data: dict[str, Any] = as_json(event.model_dump(exclude_none=True))
    except (ValueError, RecursionError) as error:
        raise InvalidMessage("event", f"cannot be written as JSON: {error}") from error
    actions = mapping(data.get("actions"))
    if delta := mapping(actions.get("state_delta")):
        actions["state_delta"] = {k: v for k, v in delta.items() if not k.startswith(State.TEMP_PREFIX)}
    for name in ("id", "author", "timestamp"):
        if name not in data:
            raise InvalidMessage(f"event.{name}", "is None")
    if data.get("invocation_id") == "":
        del data["invocation_id"]
    for name, default in _DEFAULTS.items():
        rest = {k: v for k, v in mapping(data.pop(name, None)).items() if k not in default or v != default[k]}
        if rest:
            data[name] = rest
    return data


def _typed(data: dict[str, Any]) -> Stored:
    """Put each field where ours say it."""
    usage, kept = _usage({name: value for name, value in data.items() if name not in ("id", "author", "timestamp")})
    said = mapping(kept.get("content"))
    parts = said.get("parts")
    if not parts:
        return Stored(data, _message(MessageRole.RECORD, data, content=kept, kept={}), usage)
    blocks = [part for part in parts if _kind(part) is None]
    calls = [_call(part) for part in parts if _kind(part) is not None]
    role = _role(data, parts)
    told = _told(said, role, parts, [rest for _, rest in calls])
    del kept["content"]
    message = _message(
        role,
        data,
        content=_content(blocks),
        kept=kept | ({"content": told} if told else {}),
        tool_calls=[call for call, _ in calls],
        tokens=_tokens(usage) if role is MessageRole.MODEL else None,
    )
    return Stored(data, message, usage)


def _usage(data: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Part what an event cost from the rest of it."""
    usage = mapping(data.get("usage_metadata"))
    return (usage, {name: value for name, value in data.items() if name != "usage_metadata"}) if usage else (None, data)


def _message(role: MessageRole, data: Mapping[str, Any], *, kept: dict[str, Any], **fields: Any) -> Message:
    """Make the message of an event: its id, author and time where they fit the columns, otherwise as they are."""
    created_at = moment(data["timestamp"])
    columns = {"id": storable_id(data["id"]), "author": storable_text(data["author"])}
    others = {name: data[name] for name, value in columns.items() if value != data[name]}
    if not same_json(created_at.timestamp(), data["timestamp"]):
        others["timestamp"] = data["timestamp"]
    return Message(role=role, created_at=created_at, extra={NAME: kept | others}, **columns, **fields)


def _role(data: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> MessageRole:
    kinds = {_kind(part) for part in parts}
    if "function_response" in kinds and "function_call" not in kinds:
        return MessageRole.TOOL
    said = data["content"].get("role")
    return MessageRole.USER if said == "user" or (said is None and data["author"] == "user") else MessageRole.MODEL


def _kind(part: Mapping[str, Any]) -> str | None:
    return next((kind for kind in _KINDS if kind in part), None)


def _content(blocks: list[dict[str, Any]]) -> Any:
    if not blocks:
        return None
    return blocks[0]["text"] if len(blocks) == 1 and blocks[0].keys() == {"text"} else blocks


def _call(part: Mapping[str, Any]) -> tuple[ToolCall, dict[str, Any]]:
    """Return a part as a call, and what of it no call says."""
    kind = str(_kind(part))
    inside, word = dict(part[kind]), _WORDS[kind]
    given = {_KINDS[kind]: inside.pop(word)} if word in inside else {}
    call = ToolCall(id=inside.pop("id", ""), name=inside.pop("name", ""), **given)
    rest = {name: value for name, value in part.items() if name != kind}
    return call, rest | ({kind: inside} if inside else {})


def _told(
    said: Mapping[str, Any], role: MessageRole, parts: Sequence[Mapping[str, Any]], rests: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return what a content says that neither the role of its message does nor its content and calls."""
    told: dict[str, Any] = {}
    if said.get("role") != _ROLES[role]:
        told["role"] = said.get("role")
    order = "".join(_BLOCK if _kind(part) is None else _CALL for part in parts)
    if f"{_CALL}{_BLOCK}" in order:
        told["order"] = order
    if calls := {str(number): rest for number, rest in enumerate(rests) if rest}:
        told["calls"] = calls
    return told


def _tokens(usage: Mapping[str, Any] | None) -> int | None:
    count = (usage or {}).get("candidates_token_count")
    return count if isinstance(count, int) and 0 <= count < 2**53 else None


def moment(timestamp: float | str) -> datetime:
    """Return a time of ADK's to the microsecond, as near as a column holds it."""
    try:
        return max(_EARLIEST, min(_LATEST, datetime.fromtimestamp(float(timestamp), UTC)))
    except (OverflowError, ValueError, OSError):
        return _EARLIEST if float(timestamp) < 0 else _LATEST


# A message becomes an event


def is_event(message: Message) -> bool:
    """Return whether a message is an event: all but records of other writers are."""
    return message.role is not MessageRole.RECORD or NAME in message.extra


def event_id(message: Message) -> str:
    """Return the id of the event that a message is."""
    return str(mapping(message.extra.get(NAME)).get("id") or message.id or f"seq:{message.seq}")


def timestamp_of(key: str, message: Message) -> float:
    """Return the time of an event, exact to the float."""
    try:
        return _timestamp(message)
    except (ValueError, TypeError) as error:
        raise DamagedMessage(key, message.seq, "created_at", str(error)) from None


def _timestamp(message: Message) -> float:
    assert message.created_at is not None
    return float(mapping(message.extra.get(NAME)).get("timestamp", message.created_at.timestamp()))


def events(key: str, messages: Sequence[Message], usages: Mapping[int | None, dict[str, Any]]) -> list[Event]:
    """Return the events that messages are, given the usage of turns by their number.

    Raises:
        DamagedMessage: A message is not an event.
    """
    data = []
    for message in messages:
        try:
            data.append(event_json(message, usages.get(message.turn_no, {})))
        except (ValueError, LookupError, TypeError, AttributeError, StopIteration) as error:
            raise DamagedMessage(key, message.seq, "extra", f"makes no event with the rest: {error!r}") from error
    try:
        return _events.validate_python(data)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        number, *field = fault["loc"]
        raise DamagedMessage(key, messages[int(number)].seq, ".".join(map(str, field)), fault["msg"]) from None


def event_json(message: Message, usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of the event that a message is."""
    data: dict[str, Any] = {
        "id": event_id(message),
        "author": message.author or "",
        "timestamp": _timestamp(message),
    }
    if NAME not in message.extra:
        return data | foreign_json(message)
    rest = message.extra[NAME]
    if usage:
        data["usage_metadata"] = usage
    if message.role is MessageRole.RECORD:
        return {**data, **message.content, **rest}
    told = rest.get("content", {})
    said: dict[str, Any] = {"parts": _parts(message, told)}
    role = told.get("role", _ROLES.get(message.role, "user"))
    return data | rest | {"content": said if role is None else said | {"role": role}}


def _parts(message: Message, told: Mapping[str, Any]) -> list[Any]:
    content = message.content
    blocks = [] if content is None else [{"text": content}] if isinstance(content, str) else list(content)
    rests = told.get("calls", {})
    calls = [_part(call.model_dump(), rests.get(str(n), {})) for n, call in enumerate(message.tool_calls)]
    if "order" not in told:
        return blocks + calls
    of_kind = {_BLOCK: iter(blocks), _CALL: iter(calls)}
    return [next(of_kind[kind]) for kind in told["order"]]


def _part(call: Mapping[str, Any], rest: Mapping[str, Any]) -> dict[str, Any]:
    kind = "function_response" if "output" in call else "function_call"
    inside = {name: call[name] for name in ("id", "name") if call[name]}
    if _KINDS[kind] in call:
        inside[_WORDS[kind]] = call[_KINDS[kind]]
    return {**rest, kind: inside | rest.get(kind, {})}
