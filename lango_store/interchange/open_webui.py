"""Open WebUI's export of chats: a list of chats, each with a `history` of messages by id and a `currentId`."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from lango_store import Message, MessageRole
from lango_store.interchange.draft import SessionDraft
from lango_store.interchange.fidelity import known_role
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
    time_of,
)
from lango_store.rows import mapping, storable_id, storable_text

NAME: Final = "open-webui"
_USED: Final = ("id", "parentId", "childrenIds", "role", "content", "timestamp", "model")


def _nodes(raw: Json) -> Iterator[Node]:
    nodes = _history(raw).get("messages")
    if not isinstance(nodes, dict):
        raise ValueError("a chat has no history with messages")
    for id, node in nodes.items():
        yield Node(id, mapping(node).get("parentId"), [_message(id, mapping(node))])


def _history(raw: Json) -> Json:
    return mapping(mapping(raw.get("chat")).get("history"))


def _message(id: str, raw: Json) -> Message:
    role = known_role(raw.get("role")) or MessageRole.RECORD
    content = raw.get("content")
    files = objects(raw.get("files"))
    # A picture is in the file as a data URI, or only named.
    is_here = [each.get("type") == "image" and str(each.get("url")).startswith("data:") for each in files]
    shown = [
        {"type": "image_url", "image_url": {"url": each["url"]}} if here else attached(each.get("name"))
        for each, here in zip(files, is_here, strict=True)
    ]
    used = [name for name in _USED if name != "role" or role is not MessageRole.RECORD]
    read = message(
        NAME,
        role,
        blocks([content, *shown]) if isinstance(content, str) else content,
        raw,
        (*used, "files") if all(is_here) else used,
        id=storable_id(id),
        model=storable_text(raw.get("model")),
        created_at=time_of(raw.get("timestamp")),
    )
    return original(read, raw, _write_message)


_ROLES: Final = {MessageRole.USER: "user", MessageRole.SYSTEM: "system", MessageRole.DEVELOPER: "system"}


def _write_message(message: Message) -> Json:
    stored = mapping(message.extra.get(NAME))
    images: list[str] = []
    names = [attached(each.get("name")) for each in objects(stored.get("files"))]
    content = message.content if isinstance(message.content, dict) else said(message, images, names)
    role = _ROLES.get(message.role, "assistant")  # the product sends results of tools to models only within answers
    written: Json = {"id": message.id, "role": role, "content": content, "timestamp": _seconds(message.created_at)}
    if images:
        written["files"] = [{"type": "image", "url": each} for each in images]
    if role == "assistant":
        written |= {"done": True} | ({"model": message.model} if message.model else {})
    return written | stored


def _write(draft: SessionDraft, id: str, messages: dict[str, Written], shown: str | None) -> Json:
    for each in messages.values():
        each.raw.update(parentId=each.parent, childrenIds=each.children)
    title = draft.fields.get("title") or id
    models = dict.fromkeys(each.message.model for each in messages.values() if each.message.model)
    return {
        "id": id,
        "user_id": draft.fields.get("user_id") or "",
        "title": title,
        "chat": {
            "title": title,
            "models": [*models],
            "history": {"messages": {id: each.raw for id, each in messages.items()}, "currentId": shown},
        },
        "created_at": _seconds(draft.created_at),
        "updated_at": _seconds(draft.updated_at),
        **mapping(draft.extra.get(NAME)),
    }


def _seconds(time: datetime | None) -> int | None:
    """Return a time as the product's database stores it: without fractions of a second."""
    return None if time is None else int(time.timestamp())


OPEN_WEBUI: Final = Product(
    NAME,
    (b'"chat"', b'"history"', b'"user_id"'),
    "id",
    "title",
    "created_at",
    "updated_at",
    _nodes,
    lambda raw: _history(raw).get("currentId"),
    ("chat",),
    _write_message,
    _write,
)
