"""Claude's export `conversations.json`: a list of conversations, each a list of messages with their parents."""

from collections.abc import Iterator
from typing import Any, Final

from lango_store import Message, MessageRole, ToolCall
from lango_store.content import FAILED
from lango_store.interchange.trees import Json, Node, Product, attached, blocks, message, objects, time_of
from lango_store.rows import storable_id, storable_text

NAME: Final = "claude"
_READ: Final = ("text", "tool_use", "tool_result")
_USED: Final = ("uuid", "sender", "text", "created_at", "parent_message_uuid")


def _nodes(raw: Json) -> Iterator[Node]:
    if not isinstance(raw.get("chat_messages"), list):
        raise ValueError("a conversation has no chat_messages")
    before = None
    for each in objects(raw["chat_messages"]):
        if not isinstance(each.get("uuid"), str):
            raise ValueError("a message has no uuid")
        # Older exports have no parents: they are lists.
        yield Node(each["uuid"], each.get("parent_message_uuid", before), list(_messages(each)))
        before = each["uuid"]


def _messages(raw: Json) -> Iterator[Message]:
    """Yield the messages of an answer, which has the calls of tools and their results between its texts."""
    content = objects(raw.get("content"))
    role = MessageRole.USER if raw.get("sender") == "human" else MessageRole.ASSISTANT
    plain = all(each.get("type") == "text" and not each.get("citations") for each in content)
    rest = (raw, (*_USED, "content") if plain else _USED)
    is_read = any(each.get("type") in _READ for each in content)  # otherwise for example a voice note
    texts: list[str | Json] = [] if is_read or not isinstance(raw.get("text"), str) else [raw["text"]]
    calls: list[ToolCall] = []
    asked: list[ToolCall] = []
    count = 0

    def said(role: MessageRole, content: Any, **fields: Any) -> Message:
        nonlocal count
        id = f"{raw['uuid']}/{count}" if count else raw["uuid"]
        raw_of, used = ({}, ()) if count else rest
        count += 1
        created_at = time_of(raw.get("created_at"))
        return message(NAME, role, content, raw_of, used, id=storable_id(id), created_at=created_at, **fields)

    def answer() -> Iterator[Message]:
        nonlocal texts, calls
        if texts or calls or not count:
            yield said(role, blocks(texts), tool_calls=calls)
        asked.extend(calls)
        texts, calls = [], []

    for block in content:
        kind, wanted = block.get("type"), block.get("tool_use_id")
        if kind == "text" and isinstance(block.get("text"), str):
            if calls:
                yield from answer()
            texts.append(block["text"])
        elif kind == "tool_use":
            id = storable_text(block.get("id")) or f"{raw['uuid']}/{count}/{len(calls)}"
            calls.append(ToolCall(id=id, name=storable_text(block.get("name")) or "", arguments=block.get("input")))
        elif kind == "tool_result":
            yield from answer()
            # In exports without ids of calls, the results have the order of the calls.
            call = next((each for each in asked if not wanted or each.id == wanted), None)
            if call is not None:
                asked.remove(call)
                failed = FAILED if block.get("is_error") is True else {}
                result = said(MessageRole.TOOL, block.get("content"), tool_call_id=call.id, name=call.name or None)
                yield result.model_copy(update={"extra": result.extra | failed})
    for each in (*objects(raw.get("attachments")), *objects(raw.get("files"))):
        texts.append(attached(each.get("file_name"), each.get("extracted_content")))
    yield from answer()


CLAUDE: Final = Product(
    NAME,
    (b'"chat_messages"', b'"uuid"'),
    "uuid",
    "name",
    "created_at",
    "updated_at",
    _nodes,
    lambda raw: raw.get("current_leaf_message_uuid"),
    ("chat_messages",),
)
