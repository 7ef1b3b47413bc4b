"""Shepherd's session files: one JSON object a provider, indented by 2, keys sorted.

The session's key is `shepherd:` and the provider. Its `extra["shepherd"]` holds the file's members besides messages and
indices, a message's what our fields cannot give back, see `fidelity`. A time without a zone is this machine's.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from lango_store.backup.files import LONGEST_LINE
from lango_store.errors import InvalidFile
from lango_store.interchange.draft import Draft, Part, Skipped
from lango_store.interchange.fidelity import storable_text
from lango_store.interchange.json_text import JsonMembers
from lango_store.interchange.moments import moment
from lango_store.interchange.shepherd.messages import message_from
from lango_store.interchange.shepherd.names import FILE, INDICES, NAME, PREFIX, VERSION
from lango_store.interchange.source import Source, checked_file_key


def recognises(path: Path) -> bool:
    """Whether a file is a session of Shepherd, by its name."""
    return FILE.fullmatch(path.name) is not None


def read(path: Path, skipped: list[Skipped], longest_line: int = LONGEST_LINE) -> list[Draft]:
    """Read a session; `InvalidFile` if the file is damaged or of another version than 1."""
    source = Source(path, longest_line)
    raw: dict[str, Any] = {}
    number = 0
    for name, value in _members(source):
        if name == "messages":
            number += 1
            message_from(value, None, number, skipped)
        elif name not in INDICES:
            raw[name] = value
        del value  # it may be large, and the next one is read before it is replaced
    if type(raw.get("version")) is not int or raw["version"] != VERSION:
        raise InvalidFile(path, f"is of version {raw.get('version')!r}: save it with a Shepherd that writes version 1")
    if not isinstance(raw.get("provider"), str):
        raise InvalidFile(path, "names no provider, which gives the session its key: add one")
    saved_at = moment(raw.get("timestamp"), local=True)
    model = storable_text(raw.get("model"))
    return [
        Draft(
            key=checked_file_key(path, PREFIX + raw["provider"]),
            parts=lambda: _parts(source, saved_at),
            fields={"model": model} if model else {},
            created_at=saved_at,
            updated_at=saved_at,
            extra={NAME: raw},
        )
    ]


def _members(source: Source) -> Iterator[tuple[str, Any]]:
    """Yield the file's members; of `messages` each message."""
    has_messages = False
    waiting: list[tuple[str, Any]] = []  # a message may be large, and its reader is the only one to hold it
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
                    waiting.append((name, message))
                    del message
                    yield waiting.pop()
            if not has_messages:
                raise ValueError("it has no messages")
        except ValueError as error:
            raise InvalidFile(
                source.path, f"is not a session of Shepherd ({error}): mend it, it was left alone"
            ) from error


def _parts(source: Source, saved_at: datetime | None) -> Iterator[Part]:
    messages = filter(lambda member: member[0] == "messages", _members(source))
    return map(lambda number, member: _part(number, member[1], saved_at), count(1), messages)


def _part(number: int, message: dict[str, Any], saved_at: datetime | None) -> Part:
    return Part([message_from(message, saved_at, number, [])], created_at=saved_at)
