"""Conversion between one entry of a transcript and one message.

Content, tool calls and results are stored in the message's fields, the rest in its `extra` under the SDK's name, as an
object with these members: `entry` and `message` hold the other fields of the entry and of its message, `block` and
`result` those of the block that held the content, `calls` those of each call, `places` the positions of the calls
among the blocks, and `untimed` is set if the entry had no timestamp. An entry that is not from a user, a model or a
tool becomes a record whose content is the entry without `uuid` and `timestamp`; so does an entry that would not
survive the conversion.
"""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from lango_store import InvalidMessage, Message, MessageRole
from lango_store.integrations.fields import same_json, storable_id, storable_text
from lango_store.window import as_prompt

NAME: Final = "claude_agent_sdk"
"""The name in `extra` for the parts of an entry without a field of ours."""

_NOTHING: Final = "(no content)"  # the model's interface refuses a block of empty text
_WORDS: Final = {MessageRole.USER: "user", MessageRole.TOOL: "user", MessageRole.ASSISTANT: "assistant"}


class Parts(NamedTuple):
    """An entry in our fields, its calls as plain dicts, and what these do not say."""

    role: MessageRole
    content: Any
    rest: dict[str, Any]
    id: str | None = None
    created_at: datetime | None = None
    author: str | None = None
    tool_call_id: str | None = None
    calls: Sequence[Mapping[str, Any]] = ()


# Entries as messages


def message_of(entry: Any) -> Message:
    """Return the message that an entry is stored as; `InvalidMessage` for anything but an entry."""
    if not isinstance(entry, dict):
        raise InvalidMessage("entry", f"is {type(entry).__name__}, not a dict: an entry is an object of JSON")
    parts = _said(entry)
    if parts is not None:
        try:
            if same_json(entry_of(parts), entry):
                return _message(parts)
        except ValidationError:  # half a surrogate pair in the name of a tool, say
            pass
    content = {"type": entry["type"], **entry} if "type" in entry else dict(entry)  # type first, for readers
    return _message(Parts(MessageRole.RECORD, content, {}, *_typed(content)))


def _message(parts: Parts) -> Message:
    fields = parts._asdict()
    rest, calls = fields.pop("rest"), list(fields.pop("calls"))
    if parts.created_at is None:
        rest = rest | {"untimed": True}
    return Message(**fields, tool_calls=calls, extra={NAME: rest})


def _said(entry: dict[str, Any]) -> Parts | None:
    """Return the parts of what a user, a model or a tool said; None for any other entry."""
    word, message = entry.get("type"), entry.get("message")
    if word not in ("user", "assistant") or type(message) is not dict or message.get("role") != word:
        return None
    fields = {name: value for name, value in entry.items() if name != "message"}
    del fields["type"]
    id, created_at = _typed(fields)
    author = None
    if entry.get("isSidechain") is True:
        author = storable_text(entry.get("agentId"))
        if author is not None:
            del fields["agentId"]
    others = {name: value for name, value in message.items() if name not in ("role", "content")}
    rest: dict[str, Any] = {name: value for name, value in (("entry", fields), ("message", others)) if value}
    content = message.get("content")
    if type(content) is not list:
        return Parts(MessageRole(word), content, rest, id, created_at, author)
    blocks, calls, places = _without_calls(content, word)
    if calls:
        if any(more := [_others(content[place], "id", "name", "input") for place in places]):
            rest["calls"] = more
        if places[0] != len(blocks):
            rest["places"] = places
        content = _text(blocks, rest) if blocks else None
        return Parts(MessageRole.ASSISTANT, content, rest, id, created_at, author, None, calls)
    if word == "user" and content and all(_is_result(block) for block in content):
        return _results(content, Parts(MessageRole.TOOL, None, rest, id, created_at, author))
    return Parts(MessageRole(word), _text(content, rest), rest, id, created_at, author)


def _typed(fields: dict[str, Any]) -> tuple[str | None, datetime | None]:
    """Remove the id and the time from an entry's fields, unless they would not survive the conversion."""
    id, timestamp = storable_id(fields.get("uuid")), fields.get("timestamp")
    if id is not None:
        del fields["uuid"]
    created_at = _moment(timestamp)
    if created_at is not None and timestamp_of(created_at) == timestamp:
        del fields["timestamp"]
    return id, created_at


def _moment(timestamp: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(timestamp)
        return None if moment.tzinfo is None else moment.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None


def timestamp_of(moment: datetime) -> str:
    """Return a time as the SDK writes it."""
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"


def _without_calls(content: list[Any], word: str) -> tuple[list[Any], list[dict[str, Any]], list[int]]:
    """Split the blocks of a model into content and calls; return both, and the positions of the calls."""
    if word != "assistant":
        return content, [], []
    blocks, calls, places = [], [], []
    for place, block in enumerate(content):
        if isinstance(block, dict) and block.get("type") == "tool_use":
            call = {"id": block.get("id"), "name": block.get("name")}
            calls.append(call | {"arguments": block["input"]} if "input" in block else call)
            places.append(place)
        else:
            blocks.append(block)
    return blocks, calls, places


def _results(content: list[dict[str, Any]], parts: Parts) -> Parts:
    rest = parts.rest
    others = [_others(block, "tool_use_id", "content") for block in content]
    if len(content) > 1 or storable_text(content[0]["tool_use_id"]) is None:
        if any(others):
            rest["calls"] = others
        calls = [
            {"id": block["tool_use_id"], "name": ""} | ({"output": block["content"]} if "content" in block else {})
            for block in content
        ]
        return parts._replace(calls=calls)
    if others[0]:
        rest["result"] = others[0]
    answer = content[0].get("content")
    return parts._replace(
        content=_text(answer, rest) if type(answer) is list else answer, tool_call_id=content[0]["tool_use_id"]
    )


def _text(blocks: list[Any], rest: dict[str, Any]) -> Any:
    """Return the text of a single block of text, and keep the block's other fields; return other blocks unchanged."""
    block = blocks[0] if len(blocks) == 1 else None
    if isinstance(block, dict) and block.get("type") == "text" and type(block.get("text")) is str:
        rest["block"] = _others(block, "text")
        return block["text"]
    return blocks


def _others(block: Mapping[str, Any], *taken: str) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != "type" and name not in taken}


def _is_result(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result" and isinstance(block.get("tool_use_id"), str)


# Messages as entries


def entry_of_message(message: Message) -> dict[str, Any]:
    """Return the entry that a message was made of."""
    names = ("role", "content", "id", "created_at", "author", "tool_call_id")
    fields: dict[str, Any] = {name: getattr(message, name) for name in names}
    calls = [call.model_dump() for call in message.tool_calls]
    return entry_of(Parts(**fields, rest=message.extra[NAME], calls=calls))


def entry_of(parts: Parts) -> dict[str, Any]:
    """Return the entry that a message was made of."""
    rest = parts.rest
    if parts.role is MessageRole.RECORD:
        entry: dict[str, Any] = dict(parts.content)
    else:
        word = _WORDS[parts.role]
        message = {"role": word, "content": _content(parts), **rest.get("message", {})}
        entry = {"type": word, "message": message, **rest.get("entry", {})}
        if parts.author is not None:
            entry["agentId"] = parts.author
    if parts.id is not None:
        entry["uuid"] = parts.id
    if parts.created_at is not None and "untimed" not in rest and "timestamp" not in entry:
        entry["timestamp"] = timestamp_of(parts.created_at)
    return entry


def _content(parts: Parts) -> Any:
    rest, content = parts.rest, parts.content
    if "block" in rest:
        content = [{"type": "text", "text": content, **rest["block"]}]
    if parts.tool_call_id is not None:
        answer = {} if content is None else {"content": content}
        return [{"type": "tool_result", "tool_use_id": parts.tool_call_id, **answer, **rest.get("result", {})}]
    if not parts.calls:
        return content
    others = rest.get("calls") or [{}] * len(parts.calls)
    if parts.role is MessageRole.TOOL:
        return [
            {"type": "tool_result", "tool_use_id": call["id"], **_given(call, "output", "content"), **more}
            for call, more in zip(parts.calls, others, strict=True)
        ]
    blocks = list(content or ())
    places = rest.get("places") or range(len(blocks), len(blocks) + len(parts.calls))
    for place, call, more in zip(places, parts.calls, others, strict=True):
        named = {"id": call["id"], "name": call["name"], **_given(call, "arguments", "input")}
        blocks.insert(place, {"type": "tool_use", **named, **more})
    return blocks


def _given(call: Mapping[str, Any], name: str, word: str) -> dict[str, Any]:
    return {word: call[name]} if name in call else {}


# Messages that the SDK did not write, or that were redacted


def entries_of_other_program(key: str, message: Message, parent: str | None, **fields: Any) -> Iterator[dict[str, Any]]:
    """Yield what a user, a model or a tool said in a message, each after the entry whose `uuid` is `parent`."""
    moment = message.created_at
    said = [each for each in as_prompt([message], nested=False) if MessageRole(each["role"]) in _WORDS]
    for number, each in enumerate(said):
        own = f"{key}/{message.seq}/{number}"
        id = (_uuid(message.id) if number == 0 else None) or str(uuid.uuid5(uuid.NAMESPACE_OID, own))
        word = _WORDS[MessageRole(each["role"])]
        response = {"id": f"msg_{id}"} if word == "assistant" else {}  # those of one response are put together
        yield {
            "parentUuid": parent,
            "isSidechain": False,
            "type": word,
            "message": {**response, "role": word, "content": _content_blocks(each)},
            "uuid": id,
            **({} if moment is None else {"timestamp": timestamp_of(moment)}),
            **fields,
        }
        parent = id


def _uuid(id: str | None) -> str | None:
    try:
        return None if id is None else str(uuid.UUID(id)) and id
    except ValueError:
        return None


def _content_blocks(said: dict[str, Any]) -> Any:
    content, calls = said["content"], said.get("tool_calls") or []
    if said["role"] == "tool":
        return [{"type": "tool_result", "tool_use_id": said.get("tool_call_id", ""), "content": content or ""}]
    if said["role"] == "user":
        return content or _NOTHING
    text = content or ("" if calls else _NOTHING)
    blocks = text if isinstance(text, list) else [{"type": "text", "text": text}] if text else []
    return blocks + [
        {"type": "tool_use", "id": call["id"], "name": call["name"], "input": _input(call.get("arguments"))}
        for call in calls
    ]


def _input(arguments: Any) -> Any:
    try:
        found = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except ValueError:
        return {"arguments": arguments}
    return found if isinstance(found, dict) else {} if found is None else {"arguments": found}
