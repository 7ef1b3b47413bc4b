"""A draft as a file of Shepherd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from lango_store._values.model import Message
from lango_store.backup.files import writing
from lango_store.interchange.draft import Draft
from lango_store.interchange.fidelity import mapping, storable_text
from lango_store.interchange.moments import moment
from lango_store.interchange.shepherd.messages import messages_to
from lango_store.interchange.shepherd.names import INDICES, NAME, PREFIX, VERSION, file_name


def write(draft: Draft, folder: Path, *, replace: bool = False) -> Path:
    """Write a session's log to the file that Shepherd reads for its provider.

    A session that did not come from Shepherd has its key for a provider.
    """
    members = _members_of(draft)
    path = folder / file_name(members["provider"], draft.key)
    with writing(path, replace=replace) as file:
        for text in _texts(members, draft):
            # A lone surrogate has no UTF-8; its JSON escape is what backslashreplace writes.
            file.write(text.encode("utf-8", "backslashreplace"))
    return path


def _members_of(draft: Draft) -> dict[str, Any]:
    """Return the file's members as they came, with what has changed since, and the indices."""
    raw = mapping(draft.extra.get(NAME))
    members = {"provider": draft.key.removeprefix(PREFIX), "model": "", "version": VERSION, "timestamp": None} | raw
    if not isinstance(members["provider"], str):
        members["provider"] = draft.key.removeprefix(PREFIX)
    if draft.fields.get("model") != storable_text(members["model"]):
        members["model"] = draft.fields.get("model") or ""
    if not raw or moment(members["timestamp"], local=True) not in (None, draft.updated_at):
        members["timestamp"] = _stamp(draft.updated_at)
    members |= dict.fromkeys(INDICES, -1)
    for index, message in enumerate(_messages(draft)):
        members |= {name: index for name, role in INDICES.items() if message.get("role") == role}
    return {name: value for name, value in members.items() if name != "messages"}


def _stamp(time: datetime | None) -> str:
    return "" if time is None else time.astimezone().replace(tzinfo=None).isoformat(timespec="seconds")


def _messages(draft: Draft) -> Iterator[dict[str, Any]]:
    log: Iterator[Message] = (message for part in draft.parts() for message in part.messages)
    for message in log:
        yield from messages_to(message)


def _texts(members: dict[str, Any], draft: Draft) -> Iterator[str]:
    before = "{\n"
    for name in sorted([*members, "messages"]):
        yield f"{before}  {json.dumps(name, ensure_ascii=False)}: "
        if name == "messages":
            yield from _list_texts(_messages(draft))
        else:
            yield _indented(members[name], 2)
        before = ",\n"
    yield "\n}"


def _list_texts(messages: Iterator[dict[str, Any]]) -> Iterator[str]:
    yield "["
    before, after = "\n    ", "]"
    for message in messages:
        yield before + _indented(message, 4)
        before, after = ",\n    ", "\n  ]"
    yield after


def _indented(value: Any, by: int) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2, sort_keys=True)
    return text.replace("\n", "\n" + " " * by)
