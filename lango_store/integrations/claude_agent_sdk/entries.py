"""Lossless conversion between one entry of a transcript and one message.

Content, tool calls and results are stored in the fields of the message. The rest is stored in its `extra` under
`claude_agent_sdk`, as an object with these members:

- `entry` and `message`: the other fields of the entry, and of the message in it;
- `block` and `result`: the other fields of the block that held the content;
- `calls`: the other fields of each tool call or result;
- `places`: the positions of the calls among the blocks;
- `untimed`: True if the entry had no timestamp.

An entry that is not from a user, a model or a tool becomes a record: its content is the entry without `uuid` and
`timestamp`. So does an entry that the conversion would not restore exactly.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from lango_store import InvalidMessage, Message, MessageRole
from lango_store.content import CLAUDE, FAILED, Result, ignore, parts, written
from lango_store.integrations.fields import same_json
from lango_store.rows import storable_id, storable_text

NAME: Final = "claude_agent_sdk"
"""The name under which the rest of an entry is stored in `extra`."""

_NO_CONTENT: Final = "(no content)"  # the API of the model rejects a block of empty text
_ENTRY_TYPES: Final = {MessageRole.USER: "user", MessageRole.TOOL: "user", MessageRole.ASSISTANT: "assistant"}


class Parts(NamedTuple):
    """The fields of a message for an entry, with calls as plain dicts, and the rest of the entry."""

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
    """Convert an entry to a message. Raises `InvalidMessage` if the value is not an entry."""
    if not isinstance(entry, dict):
        raise InvalidMessage("entry", f"is {type(entry).__name__}, not a dict: an entry is a JSON object")
    parts = _parts_of(entry)
    if parts is not None:
        try:
            if same_json(entry_of(parts), entry):
                return _message(parts)
        except ValidationError:  # for example a lone surrogate in the name of a tool
            pass
    content = {"type": entry["type"], **entry} if "type" in entry else dict(entry)  # type first, for readers
    return _message(Parts(MessageRole.RECORD, content, {}, *_typed(content)))


def _message(parts: Parts) -> Message:
    fields = parts._asdict()
    rest, calls = fields.pop("rest"), list(fields.pop("calls"))
    if parts.created_at is None:
        rest = rest | {"untimed": True}
    model = storable_text(rest.get("message", {}).get("model"))
    return Message(**fields, tool_calls=calls, model=model, extra={NAME: rest, **_failure(rest.get("result", {}))})


def _parts_of(entry: dict[str, Any]) -> Parts | None:
    """Return the parts of an entry from a user, a model or a tool, and None for any other entry."""
    entry_type, message = entry.get("type"), entry.get("message")
    if entry_type not in ("user", "assistant") or type(message) is not dict or message.get("role") != entry_type:
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
        return Parts(MessageRole(entry_type), content, rest, id, created_at, author)
    blocks, calls, positions = _split_calls(content, entry_type)
    if calls:
        if any(more := [_others(content[position], "id", "name", "input") for position in positions]):
            rest["calls"] = more
        if positions[0] != len(blocks):
            rest["places"] = positions
        content = _text(blocks, rest) if blocks else None
        return Parts(MessageRole.ASSISTANT, content, rest, id, created_at, author, None, calls)
    if entry_type == "user" and content and all(_is_result(block) for block in content):
        return _results(content, Parts(MessageRole.TOOL, None, rest, id, created_at, author))
    return Parts(MessageRole(entry_type), _text(content, rest), rest, id, created_at, author)


def _typed(fields: dict[str, Any]) -> tuple[str | None, datetime | None]:
    """Take id and time out of an entry's fields; leave one there if the conversion would not restore it exactly."""
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


def _split_calls(content: list[Any], entry_type: str) -> tuple[list[Any], list[dict[str, Any]], list[int]]:
    """Split the blocks of a model into content and calls. Returns both, and the positions of the calls."""
    if entry_type != "assistant":
        return content, [], []
    blocks, calls, positions = [], [], []
    for position, block in enumerate(content):
        if isinstance(block, dict) and block.get("type") == "tool_use":
            call = {"id": block.get("id"), "name": block.get("name")}
            calls.append(call | {"arguments": block["input"]} if "input" in block else call)
            positions.append(position)
        else:
            blocks.append(block)
    return blocks, calls, positions


def _results(content: list[dict[str, Any]], parts: Parts) -> Parts:
    rest = parts.rest
    others = [_others(block, "tool_use_id", "content") for block in content]
    if len(content) > 1 or storable_text(content[0]["tool_use_id"]) is None:
        if any(others):
            rest["calls"] = others
        calls = [
            {"id": block["tool_use_id"], "name": "", "extra": _failure(block)}
            | ({"output": block["content"]} if "content" in block else {})
            for block in content
        ]
        return parts._replace(calls=calls)
    if others[0]:
        rest["result"] = others[0]
    result = content[0].get("content")
    return parts._replace(
        content=_text(result, rest) if type(result) is list else result, tool_call_id=content[0]["tool_use_id"]
    )


def _text(blocks: list[Any], rest: dict[str, Any]) -> Any:
    """Return the text of a single text block, and store its other fields in `rest`; else return `blocks` unchanged."""
    block = blocks[0] if len(blocks) == 1 else None
    if isinstance(block, dict) and block.get("type") == "text" and type(block.get("text")) is str:
        rest["block"] = _others(block, "text")
        return block["text"]
    return blocks


def _others(block: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != "type" and name not in names}


def _failure(block: Mapping[str, Any]) -> dict[str, Any]:
    return dict(FAILED) if block.get("is_error") is True else {}


def _is_result(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result" and isinstance(block.get("tool_use_id"), str)


# Messages as entries


def entry_of_message(message: Message) -> dict[str, Any]:
    """Return the entry that was stored as this message."""
    names = ("role", "content", "id", "created_at", "author", "tool_call_id")
    fields: dict[str, Any] = {name: getattr(message, name) for name in names}
    calls = [call.model_dump() for call in message.tool_calls]
    return entry_of(Parts(**fields, rest=message.extra[NAME], calls=calls))


def entry_of(parts: Parts) -> dict[str, Any]:
    """Return the entry with these parts."""
    rest = parts.rest
    if parts.role is MessageRole.RECORD:
        entry: dict[str, Any] = dict(parts.content)
    else:
        entry_type = _ENTRY_TYPES[parts.role]
        message = {"role": entry_type, "content": _content(parts), **rest.get("message", {})}
        entry = {"type": entry_type, "message": message, **rest.get("entry", {})}
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
        result = {} if content is None else {"content": content}
        return [{"type": "tool_result", "tool_use_id": parts.tool_call_id, **result, **rest.get("result", {})}]
    if not parts.calls:
        return content
    others = rest.get("calls") or [{}] * len(parts.calls)
    if parts.role is MessageRole.TOOL:
        return [
            {"type": "tool_result", "tool_use_id": call["id"], **_renamed(call, "output", "content"), **more}
            for call, more in zip(parts.calls, others, strict=True)
        ]
    blocks = list(content or ())
    positions = rest.get("places") or range(len(blocks), len(blocks) + len(parts.calls))
    for position, call, more in zip(positions, parts.calls, others, strict=True):
        named = {"id": call["id"], "name": call["name"], **_renamed(call, "arguments", "input")}
        blocks.insert(position, {"type": "tool_use", **named, **more})
    return blocks


def _renamed(call: Mapping[str, Any], name: str, new_name: str) -> dict[str, Any]:
    return {new_name: call[name]} if name in call else {}


# Messages that the SDK did not write, or that were redacted


def entries_of_other_program(key: str, message: Message, parent: str | None, **fields: Any) -> Iterator[dict[str, Any]]:
    """Yield a chain of entries for a message of another program; the first follows the entry `parent`."""
    moment = message.created_at
    for number, (entry_type, content) in enumerate(_contents(message)):
        name = f"{key}/{message.seq}/{number}"
        id = (_uuid(message.id) if number == 0 else None) or str(uuid.uuid5(uuid.NAMESPACE_OID, name))
        response = {"id": f"msg_{id}"} if entry_type == "assistant" else {}  # the SDK joins the entries of one response
        yield {
            "parentUuid": parent,
            "isSidechain": False,
            "type": entry_type,
            "message": {**response, "role": entry_type, "content": content},
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


def _contents(message: Message) -> Iterator[tuple[str, Any]]:
    """Yield the type and the content of each entry: one for the message, and one for each result of a tool."""
    if message.role.canonical not in _ENTRY_TYPES:
        return
    entry_type, found = _ENTRY_TYPES[message.role.canonical], parts(message)
    results = [part for part in found if isinstance(part, Result)]
    if len(results) < len(found) or not results:
        own = [part for part in found if not isinstance(part, Result)]
        content = written(CLAUDE, own, entry_type, ignore) or _NO_CONTENT
        is_text = isinstance(content, str) and entry_type == "assistant"
        yield entry_type, [{"type": "text", "text": content}] if is_text else content
    for result in results:
        yield "user", CLAUDE.write([result], "user", ignore)
