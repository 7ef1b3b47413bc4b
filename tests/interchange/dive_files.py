"""Session files of Dive for tests."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lango_store import Message
from lango_store.interchange import dive
from lango_store.interchange.draft import SessionDraft

TIME = "2026-11-21T20:34:01.833901979Z"
MOMENT = datetime(2026, 11, 21, 20, 34, 1, 833901, tzinfo=UTC)
TEXT = [{"type": "text", "text": "hello"}]


def read(path: Path) -> SessionDraft:
    (draft,) = dive.read(path, [])
    return draft


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def header(**fields: Any) -> dict[str, Any]:
    return {"line_type": "header", "data": {"id": "s", "created_at": TIME, "updated_at": TIME} | fields}


def event(*sent: dict[str, Any], **fields: Any) -> dict[str, Any]:
    data = {"id": "evt-1", "type": "turn", "timestamp": TIME, "messages": list(sent) or None} | fields
    return {"line_type": "event", "data": data}


def user(**fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": TEXT} | fields


def file(folder: Path, *written: Any, end: str = "\n") -> Path:
    path = folder / "s.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in written) + end)
    return path


def dives(message: Message) -> dict[str, Any]:
    """Convert a message to the form of Dive's expected output."""
    return ({"id": message.id} if message.id else {}) | {"role": message.role.value, "content": message.content}


def window(draft: SessionDraft) -> list[Message]:
    """Return what Dive gives a model: the last compaction and what follows."""
    found: list[Message] = []
    for part in draft.parts:
        found = part.messages if part.kind == "compaction" else found + part.messages
    return found


def usage(draft: SessionDraft) -> dict[str, int]:
    total = {"input_tokens": 0, "output_tokens": 0}
    for part in draft.parts:
        for name, value in (part.usage or {}).items():
            if isinstance(value, int):
                total[name] = total.get(name, 0) + value
    return total
