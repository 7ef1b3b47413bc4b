"""Shepherd's session files: one JSON object a provider, indented by 2, keys sorted.

The session's key is `shepherd:` and the provider. Its `extra["shepherd"]` holds the file's members besides messages and
indices, a message's what our fields cannot give back, see `fidelity`. A time without a zone is this machine's.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

from lango_store.errors import InvalidFile, InvalidKey
from lango_store.interchange.draft import Draft, Part, Skipped
from lango_store.interchange.fidelity import kept_text, mapping
from lango_store.interchange.files import LONGEST_LINE, writing
from lango_store.interchange.json_text import JsonMembers
from lango_store.interchange.nanobot_lines import moment
from lango_store.interchange.shepherd_messages import message_from, messages_to
from lango_store.interchange.source import MAX_NAME, Source, checked_file_key
from lango_store.model import Message

NAME: Final = "shepherd"
VERSION: Final = 1

_PREFIX: Final = f"{NAME}:"
_FILE: Final = re.compile(r"\.shepherd_session\..*\.json", re.DOTALL)
_NOT_IN_NAMES: Final = re.compile(rb"[^0-9A-Za-z.-]")
_LAST: Final = {"last_assistant_message_index": "assistant", "last_user_message_index": "user"}
_PAGE: Final = 100


def recognises(path: Path) -> bool:
    """Tell by a file's name whether it is a session of Shepherd."""
    return _FILE.fullmatch(path.name) is not None


def read(path: Path, skipped: list[Skipped], longest_line: int = LONGEST_LINE) -> list[Draft]:
    """Read a session; `InvalidFile` if the file is damaged or of another version than 1."""
    source = Source(path, longest_line)
    kept: dict[str, Any] = {}
    number = 0
    for name, value in _members(source):
        if name == "messages":
            number += 1
            message_from(value, None, number, skipped)
        elif name not in _LAST:
            kept[name] = value
    if type(kept.get("version")) is not int or kept["version"] != VERSION:
        raise InvalidFile(path, f"is of version {kept.get('version')!r}: save it with a Shepherd that writes version 1")
    if not isinstance(kept.get("provider"), str):
        raise InvalidFile(path, "names no provider, which gives the session its key: add one")
    saved_at = moment(kept.get("timestamp"))
    model = kept_text(kept.get("model"))
    return [
        Draft(
            key=checked_file_key(path, _PREFIX + kept["provider"]),
            parts=lambda: _parts(source, saved_at),
            fields={"model": model} if model else {},
            created_at=saved_at,
            updated_at=saved_at,
            extra={NAME: kept},
        )
    ]


def write(draft: Draft, folder: Path, *, replace: bool = False) -> Path:
    """Write a session's log to the file that Shepherd reads for its provider.

    A session that did not come from Shepherd has its key for a provider.
    """
    members = _members_of(draft)
    path = (
        folder
        / f".shepherd_session.{_NOT_IN_NAMES.sub(b'-', members['provider'].encode('utf-8', 'replace')).decode()}.json"
    )
    if len(path.name) > MAX_NAME:
        raise InvalidKey(f"session key {draft.key!r} is too long for a file's name: fork it to a shorter key")
    with writing(path, replace=replace) as file:
        for text in _texts(members, draft):
            # A lone surrogate has no UTF-8; its JSON escape is what backslashreplace writes.
            file.write(text.encode("utf-8", "backslashreplace"))
    return path


# In


def _members(source: Source) -> Iterator[tuple[str, Any]]:
    """Give the file's members; of `messages` each message."""
    has_messages = False
    with source.reading() as file:
        members = JsonMembers(io.TextIOWrapper(file, encoding="utf-8", newline=""), source.longest_line)
        try:
            for name in members.names():
                if name != "messages":
                    yield name, members.value()
                    continue
                has_messages = True
                for message in members.elements():
                    if not isinstance(message, dict):
                        raise ValueError(f"among the messages stands {type(message).__name__}")
                    yield name, message
            if not has_messages:
                raise ValueError("it has no messages")
        except ValueError as error:
            raise InvalidFile(
                source.path, f"is no session of Shepherd ({error}): mend it, it was left alone"
            ) from error


def _parts(source: Source, saved_at: datetime | None) -> Iterator[Part]:
    found = (
        message_from(value, saved_at, number, [])
        for number, value in enumerate((value for name, value in _members(source) if name == "messages"), 1)
    )
    while page := list(islice(found, _PAGE)):
        yield Part(page, created_at=saved_at)


# Out


def _members_of(draft: Draft) -> dict[str, Any]:
    """Give the file's members as they came, with what has changed since, and the indices."""
    kept = mapping(draft.extra.get(NAME))
    members = {"provider": draft.key.removeprefix(_PREFIX), "model": "", "version": VERSION, "timestamp": None} | kept
    if not isinstance(members["provider"], str):
        members["provider"] = draft.key.removeprefix(_PREFIX)
    if draft.fields.get("model") != kept_text(members["model"]):
        members["model"] = draft.fields.get("model") or ""
    if not kept or moment(members["timestamp"]) not in (None, draft.updated_at):
        members["timestamp"] = _stamp(draft.updated_at)
    members |= dict.fromkeys(_LAST, -1)
    for index, message in enumerate(_messages(draft)):
        members |= {name: index for name, role in _LAST.items() if message.get("role") == role}
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
