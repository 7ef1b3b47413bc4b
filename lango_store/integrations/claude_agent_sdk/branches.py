"""Branches that a query left behind, for example with `resume_session_at`.

Each entry names the entry that it follows, so a transcript is a tree. The SDK continues one branch. The messages of the
other branches are stored as records, so that they are in the log, but not in the conversation. Their `extra` holds the
role that they had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from lango_store import Message, MessageRole, Store
from lango_store.integrations.claude_agent_sdk.entries import NAME, entries_of_other_program
from lango_store.rows import mapping

_LEFT: Final = "left"
"""The name in `extra` of the role that a message had before its branch was left."""

_RECENT: Final = 50
"""The number of entries before a batch that are read first. Usually, the batch follows one of them."""


class _Node(NamedTuple):
    """A message, and the id of the entry that it follows: any JSON if another program wrote the entry."""

    message: Message
    parent: Any


def as_shown(message: Message) -> Message:
    """Return the message of a branch that was left with its original role and `extra`, others unchanged."""
    own = mapping(message.extra.get(NAME))
    if _LEFT not in own:
        return message
    rest = {name: value for name, value in own.items() if name != _LEFT}
    return message.model_copy(update={"role": MessageRole(own[_LEFT]), "extra": message.extra | {NAME: rest}})


def _as_left(message: Message) -> Message:
    own = mapping(message.extra.get(NAME)) | {_LEFT: message.role.value}
    return message.model_copy(update={"role": MessageRole.RECORD, "extra": message.extra | {NAME: own}})


def leave_branches(tx: Store, key: str, stored: Sequence[Message]) -> None:
    """Convert the messages that the last prompt of a batch does not follow to records, and others back to messages.

    `stored` are the messages of the batch, which was appended.
    """
    new = [message for message in stored if not message.replayed]
    prompt = next((message for message in reversed(new) if _is_prompt(message)), None)
    if prompt is None:
        return
    conversation = tx.conversation(key)
    read = conversation.all_messages(before=new[0].seq, last=_RECENT, damaged="return")
    recent = [message for message in read if isinstance(message, Message)]
    path = _path(_nodes(key, [*recent, *new]), prompt)
    is_complete = len(read) < _RECENT or any(each.message.seq < new[0].seq for each in path)
    if is_complete and not _moved(key, [*recent, *new], prompt):
        return
    read = conversation.all_messages(damaged="return")
    conversation.edits.update_all(_moved(key, [each for each in read if isinstance(each, Message)], prompt))


def _moved(key: str, messages: Sequence[Message], prompt: Message) -> list[Message]:
    """Return the messages to replace: those of branches that were left, and those of a branch that was taken up."""
    path = {each.message.seq: as_shown(each.message) for each in _path(_nodes(key, messages), prompt)}
    start = min(path)
    others = [as_shown(each) for each in messages if start < each.seq < prompt.seq and each.seq not in path]
    # Parallel calls are branches, too: the SDK sees all entries of a response, and all results of its calls.
    responses = {_response_id(each) for each in path.values()} - {None}
    present = path | {each.seq: each for each in others if _response_id(each) in responses}
    calls = {call.id for each in present.values() if each.role is MessageRole.ASSISTANT for call in each.tool_calls}
    present |= {each.seq: each for each in others if _answered(each) & calls}
    moved: list[Message] = []
    for message in messages:
        if message.seq in present and as_shown(message) is not message:
            moved.append(present[message.seq])
        elif message.seq not in present and start < message.seq < prompt.seq and _is_live(message):
            moved.append(_as_left(message))
    return moved


def _nodes(key: str, messages: Iterable[Message]) -> dict[str, _Node]:
    """Return the entries of messages by their id, with the id of the entry that each follows."""
    nodes: dict[str, _Node] = {}
    leaf: str | None = None
    for message in messages:
        if NAME in message.extra:
            fields = _fields(message)
            ids = [] if message.id is None else [message.id]
            parent = fields.get("parentUuid") or fields.get("logicalParentUuid")
        else:
            parent = leaf
            ids = [entry["uuid"] for entry in entries_of_other_program(key, message, leaf)]
        nodes |= {id: _Node(message, parent) for id in ids}
        leaf = ids[-1] if ids else leaf
    return nodes


def _path(nodes: Mapping[str, _Node], message: Message) -> Iterator[_Node]:
    """Yield a message and those that it follows, from the last to the first."""
    seen: set[Any] = set()
    id: Any = message.id
    while isinstance(id, str) and id in nodes and id not in seen:
        seen.add(id)
        yield nodes[id]
        id = nodes[id].parent


def _fields(message: Message) -> dict[str, Any]:
    """Return the fields of an entry, without those of the message in it."""
    own = mapping(message.extra.get(NAME))
    is_record = message.role is MessageRole.RECORD and _LEFT not in own
    return mapping(message.content if is_record else own.get("entry"))


def _is_prompt(message: Message) -> bool:
    """Return True for a message of the user that names its parent, but not for one that the CLI has added."""
    fields = _fields(message)
    names_parent = message.id is not None and "parentUuid" in fields
    return message.role is MessageRole.USER and names_parent and not fields.get("isMeta") and not _is_side(message)


def _is_live(message: Message) -> bool:
    """Return True for a message of the SDK in the conversation."""
    return message.role is not MessageRole.RECORD and NAME in message.extra and not _is_side(message)


def _is_side(message: Message) -> bool:
    return _fields(message).get("isSidechain") is True


def _response_id(message: Message) -> str | None:
    id = mapping(mapping(message.extra.get(NAME)).get("message")).get("id")
    return id if message.role is MessageRole.ASSISTANT and isinstance(id, str) else None


def _answered(message: Message) -> set[str]:
    """Return the ids of the calls whose results a message has."""
    if message.role is not MessageRole.TOOL:
        return set()
    return {message.tool_call_id} if message.tool_call_id else {call.id for call in message.tool_calls}
