"""Conversion of messages that the SDK did not write, or that were redacted, to entries that the SDK can continue."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any, Final

from lango_store import Message
from lango_store.integrations.claude_agent_sdk.entries import timestamp_of
from lango_store.window import as_prompt

_WORDS: Final = {"user": "user", "tool": "user", "assistant": "assistant"}
_NOTHING: Final = "(no content)"  # the model's interface refuses a block of empty text


def entries_of(key: str, message: Message, parent: str | None, **fields: Any) -> Iterator[dict[str, Any]]:
    """Yield what a user, a model or a tool said in a message, each after the entry whose `uuid` is `parent`.

    Instructions and records are in no transcript.
    """
    moment = message.created_at
    said = [each for each in as_prompt([message], nested=False) if each["role"] in _WORDS]
    for number, each in enumerate(said):
        own = f"{key}/{message.seq}/{number}"
        id = (_uuid(message.id) if number == 0 else None) or str(uuid.uuid5(uuid.NAMESPACE_OID, own))
        word = _WORDS[each["role"]]
        response = {"id": f"msg_{id}"} if word == "assistant" else {}  # those of one response are put together
        yield {
            "parentUuid": parent,
            "isSidechain": False,
            "type": word,
            "message": {**response, "role": word, "content": _content(each)},
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


def _content(said: dict[str, Any]) -> Any:
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
