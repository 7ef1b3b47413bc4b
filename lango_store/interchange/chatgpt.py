"""ChatGPT's export `conversations.json`: a list of conversations, each a `mapping` of nodes with their parents."""

from collections.abc import Iterator
from typing import Any, Final

from lango_store import Message, MessageRole, ToolCall
from lango_store.interchange.draft import SessionDraft
from lango_store.interchange.fidelity import as_text, known_role
from lango_store.interchange.trees import (
    Json,
    Node,
    Product,
    Written,
    attached,
    blocks,
    message,
    objects,
    original,
    said,
    seconds,
    time_of,
)
from lango_store.rows import mapping, storable_id, storable_text

NAME: Final = "chatgpt"
_TEXTS: Final = ("text", "multimodal_text")
_USED: Final = ("id", "create_time")
_HIDDEN: Final = "is_visually_hidden_from_conversation"


def _nodes(raw: Json) -> Iterator[Node]:
    nodes = raw.get("mapping")
    if not isinstance(nodes, dict):
        raise ValueError("a conversation has no mapping")
    for id, node in nodes.items():
        parent, said = mapping(node).get("parent"), mapping(mapping(node).get("message"))
        asked = parent if _is_call(mapping(mapping(nodes.get(str(parent))).get("message"))) else None
        yield Node(id, parent, [_message(id, said, asked)] if said else [])


def _message(id: str, raw: Json, asked: str | None) -> Message:
    author, metadata, content = (mapping(raw.get(name)) for name in ("author", "metadata", "content"))
    role = known_role(author.get("role")) or MessageRole.RECORD
    text, used = _text(content, metadata)
    call, name = None, None
    calls: list[ToolCall] = []
    if _is_call(raw):
        calls = [ToolCall(id=id, name=raw["recipient"], arguments={"input": text})]
        text = None
    elif role is MessageRole.TOOL and asked is not None:
        call, name = asked, storable_text(author.get("name"))
    elif role is MessageRole.TOOL or not text or isinstance(text, dict) or metadata.get(_HIDDEN) is True:
        role = MessageRole.RECORD  # a further result, reasoning, or a message that the product hides
    read = message(
        NAME,
        role,
        text,
        raw,
        (*_USED, "content") if used else _USED,
        id=storable_id(id),
        name=name,
        tool_call_id=call,
        tool_calls=calls,
        model=storable_text(metadata.get("model_slug")) if role is MessageRole.ASSISTANT else None,
        created_at=time_of(raw.get("create_time")),
    )
    return original(read, raw, _write_message)


def _is_call(raw: Json) -> bool:
    recipient = raw.get("recipient") or "all"
    return mapping(raw.get("author")).get("role") == "assistant" and isinstance(recipient, str) and recipient != "all"


def _text(content: Json, metadata: Json) -> tuple[Any, bool]:
    """Return the content of a message, and whether it has everything that the product's content has."""
    parts = content.get("parts")
    if content.get("content_type") not in _TEXTS or not isinstance(parts, list):
        text = content.get("text") or content.get("result")
        return (text, False) if isinstance(text, str) else (content, True)
    files = {each.get("id"): each.get("name") for each in objects(metadata.get("attachments"))}
    shown = []
    for part in parts:
        pointer = mapping(part).get("asset_pointer")
        if isinstance(part, str):
            shown.append(part)
        elif isinstance(pointer, str):
            shown.append(attached(files.pop(pointer.rpartition("/")[2], pointer)))
        else:
            shown.append(as_text(mapping(part).get("text") or part))
    return blocks([*shown, *map(attached, files.values())]), all(isinstance(each, str) for each in parts)


_ROLES: Final = {MessageRole.DEVELOPER: "system", MessageRole.RECORD: "system"}


def _write_message(message: Message) -> Json:
    stored, content = mapping(message.extra.get(NAME)), message.content
    names = [attached(each.get("name")) for each in objects(mapping(stored.get("metadata")).get("attachments"))]
    if not isinstance(content, dict) or "content_type" not in content:
        content = {"content_type": "text", "parts": [said(message, without=names)]}
    role = _ROLES.get(message.role, message.role.canonical.value)
    return {
        "id": message.id,
        "author": {"role": role} | ({"name": message.name} if message.name else {}),
        "create_time": seconds(message.created_at),
        "content": content,
        "status": "finished_successfully",
        "metadata": {"model_slug": message.model} if message.model else {},
        "recipient": "all",
    } | stored


def _write(draft: SessionDraft, id: str, messages: dict[str, Written], shown: str | None) -> Json:
    root = "root"
    while root in messages:
        root += "~"
    nodes: Json = {root: {"id": root, "message": None, "parent": None, "children": []}}
    for each, written in messages.items():
        parent = written.parent or root
        nodes[each] = {"id": each, "message": written.raw, "parent": parent, "children": written.children}
        if parent == root:
            nodes[root]["children"].append(each)
    return {
        "title": draft.fields.get("title") or id,
        "create_time": seconds(draft.created_at),
        "update_time": seconds(draft.updated_at),
        "mapping": nodes,
        **mapping(draft.extra.get(NAME)),
        "current_node": shown or root,
        "conversation_id": id,
        "id": id,
    }


CHATGPT: Final = Product(
    NAME,
    (b'"mapping"', b'"title"'),
    "conversation_id",
    "title",
    "create_time",
    "update_time",
    _nodes,
    lambda raw: raw.get("current_node"),
    ("mapping",),
    _write_message,
    _write,
)
