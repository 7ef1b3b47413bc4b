"""LibreChat's export of a conversation as JSON: messages with their parents, or with their children inside them."""

from collections.abc import Iterator
from typing import Any, Final

from lango_store import Message, MessageRole, ToolCall
from lango_store.interchange.trees import Json, Node, Product, attached, blocks, message, objects, time_of
from lango_store.rows import mapping, storable_id, storable_text

NAME: Final = "librechat"
_LEVELS: Final = 800  # two for each message that is inside of the one that it follows; Python's parser has a limit, too
_USED: Final = (
    "messageId",
    "parentMessageId",
    "conversationId",
    "children",
    "text",
    "createdAt",
    "isCreatedByUser",
    "model",
)


def _nodes(raw: Json) -> Iterator[Node]:
    waiting = [(None, each) for each in reversed(objects(raw.get("messagesTree") or raw.get("messages")))]
    if not waiting:
        raise ValueError("a conversation has no messages")
    before: Any = None
    branches = raw.get("branches") is not False or raw.get("recursive") is True
    while waiting:
        parent, each = waiting.pop()
        if not isinstance(each.get("messageId"), str):
            raise ValueError("a message has no messageId")
        above = parent or (each.get("parentMessageId", before) if branches else before)
        yield Node(each["messageId"], above, list(_messages(each)))
        waiting += [(each["messageId"], child) for child in reversed(objects(each.get("children")))]
        before = each["messageId"]


def _messages(raw: Json) -> Iterator[Message]:
    """Yield an answer's calls with their results, which are among its texts, and then its text."""
    content = objects(raw.get("content"))
    role = MessageRole.USER if raw.get("isCreatedByUser") is True else MessageRole.ASSISTANT
    calls = [mapping(each.get("tool_call")) for each in content if each.get("type") == "tool_call"]
    texts: list[str | Json] = [_text(each) for each in content if each.get("type") == "text"]
    if not any(texts) and isinstance(raw.get("text"), str):
        texts = [raw["text"]]
    texts += [attached(each.get("filename")) for each in objects(raw.get("files"))]
    created_at = time_of(raw.get("createdAt"))
    model = storable_text(raw.get("model")) if role is MessageRole.ASSISTANT else None
    if calls:
        asked = [
            ToolCall(
                id=storable_text(call.get("id")) or f"{raw['messageId']}/{number}",
                name=storable_text(call.get("name")) or "",
                arguments=call.get("args"),
                **({"output": call["output"]} if call.get("output") is not None else {}),
            )
            for number, call in enumerate(calls)
        ]
        id = storable_id(f"{raw['messageId']}/calls")
        yield message(NAME, role, "", {}, (), id=id, tool_calls=asked, model=model, created_at=created_at)
    yield message(
        NAME,
        role,
        blocks(texts),
        raw,
        _USED,
        id=storable_id(raw["messageId"]),
        model=model,
        created_at=created_at,
    )


def _text(part: Json) -> str:
    text = part.get("text")
    return text if isinstance(text, str) else str(mapping(text).get("value") or "")


LIBRECHAT: Final = Product(
    NAME,
    (b'"conversationId"', b'"messages'),
    "conversationId",
    "title",
    "",
    "exportAt",
    _nodes,
    lambda raw: None,
    ("messages", "messagesTree"),
    levels=_LEVELS,
    remedy='give the file unchanged; export a longer conversation without "recursive"',
)
