"""Dive's session files: a header line, then a line for each event, a turn or a compaction.

A part's and a message's `extra["dive"]` hold what our fields cannot give back, see `fidelity`; the session's holds the
whole `header`. Lines of a type that Dive does not know either stand in `lines`, with the event that they follow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lango_store.backup.files import LONGEST_LINE
from lango_store.errors import InvalidFile
from lango_store.interchange.dive.events import Repeated, part_from
from lango_store.interchange.dive.header import beside, columns
from lango_store.interchange.dive.names import NAME, id_fault, key_of
from lango_store.interchange.draft import Draft, Part, Skipped
from lango_store.interchange.json_text import NotJson, read_json
from lango_store.interchange.moments import nanoseconds
from lango_store.interchange.source import Source, checked_file_key, first_bytes

_START: Final = re.compile(rb'\s*\{\s*"line_type"\s*:')


def recognises(path: Path) -> bool:
    """Whether a file is a session of Dive, by its name and first bytes."""
    return path.suffix == ".jsonl" and _START.match(first_bytes(path, 200)) is not None


def read(path: Path, skipped: list[Skipped], longest_line: int = LONGEST_LINE) -> list[Draft]:
    """Read a session; a torn last line is dropped, a bad line elsewhere is `InvalidFile`."""
    found = _examined(Source(path, longest_line), skipped)
    header = found.header or {}
    id = header.get("id")
    if fault := id_fault(id):
        raise InvalidFile(path, f"its id {id!r} {fault}: Dive takes no such id, correct the header")
    raw: dict[str, Any] = {"header": header}
    if (nanoseconds(found.last_time) or 0) > (nanoseconds(header.get("updated_at")) or 0):
        raw["updated_at"] = found.last_time
    raw |= found.beside
    values = columns(raw)
    return [
        Draft(
            key=checked_file_key(path, key_of(str(id))),
            parts=lambda: _parts(found),
            fields={name: values[name] for name in ("title", "metadata") if values[name]},
            created_at=values["created_at"],
            updated_at=values["updated_at"],
            forked_from=values["forked_from"],
            extra={NAME: raw},
        )
    ]


@dataclass
class _Examined:
    """What has to be known of a file before its events are handed out."""

    source: Source
    header: dict[str, Any] | None = None
    beside: dict[str, Any] = field(default_factory=dict)  # what else the header's place in the file holds
    last_time: Any = None
    torn: int | None = None
    followed: set[int] = field(default_factory=set)  # the lines of events that others follow, which are not events
    repeated: Repeated = field(default_factory=Repeated)


def _examined(source: Source, skipped: list[Skipped]) -> _Examined:
    """Read the file once, to the end, so that what is wrong with it is known before anything is stored."""
    found = _Examined(source)
    seen: set[str] = set()
    seen_events: set[str] = set()
    event: int | None = None
    for number, line in _sound_lines(found, skipped):
        if found.header is None:
            found.header, found.beside = _header_from(source.path, line)
        elif line.get("line_type") == "event":
            event, found.last_time = number, line["data"].get("timestamp")
            part = part_from(line, Repeated(), number, skipped)
            _note([part.id], seen_events, found.repeated.events)
            _note([message.id for message in part.messages], seen, found.repeated.messages)
            del part
        else:
            skipped.append(
                Skipped(number, f"a line of type {line.get('line_type')!r} is not an event: stored for export only")
            )
            if event is None:
                found.beside.setdefault("lines", []).append(line)
            else:
                found.followed.add(event)
        del line  # it may be large, and the next one is read before it is replaced
    if found.header is None:
        raise InvalidFile(source.path, "has no header line: give a session file of Dive")
    return found


def _note(ids: list[str | None], seen: set[str], repeated: set[str]) -> None:
    for each in ids:
        if each is not None:
            (repeated if each in seen else seen).add(each)


def _sound_lines(found: _Examined, skipped: list[Skipped]) -> Iterator[tuple[int, dict[str, Any]]]:
    bad: tuple[int, str] | None = None
    path = found.source.path
    waiting: list[tuple[int, dict[str, Any]]] = []  # a line may be large, and its reader is the only one to hold it
    for number, raw in found.source.lines():
        if bad:
            raise InvalidFile(path, f"line {bad[0]} {bad[1]}: mend or remove it, the file was left alone")
        try:
            text = raw.decode()
            del raw
            line = read_json(text)
            del text
            fault = _fault(line)
        except UnicodeDecodeError as error:
            bad = number, f"is not UTF-8 ({error})"
            continue
        except NotJson as error:
            bad = number, str(error)
            continue
        except ValueError as error:  # JSON that is whole, and cannot be stored
            fault = str(error)
        if fault:
            raise InvalidFile(path, f"line {number} {fault}: mend or remove it, the file was left alone")
        waiting.append((number, line))
        del line
        yield waiting.pop()
    if bad:
        found.torn = bad[0]
        skipped.append(Skipped(bad[0], "the last line is torn: dropped"))


def _fault(line: Any) -> str | None:
    if not isinstance(line, dict) or not isinstance(line.get("line_type"), str):
        return "has no line_type"
    if line["line_type"] not in ("header", "event"):
        return None
    data = line.get("data")
    if not isinstance(data, dict):
        return "has no data"
    if line["line_type"] == "header":
        return None
    messages = data.get("messages") or []
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return "has messages that are not objects"
    wrong = [name for name in ("usage", "metadata") if not isinstance(data.get(name) or {}, dict)]
    return f"has {wrong[0]} that is not an object" if wrong else None


def _header_from(path: Path, line: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    if line["line_type"] != "header":
        raise InvalidFile(path, f"begins with {line['line_type']!r}, not with a header: give a session file of Dive")
    return line["data"], beside(line)


def _parts(found: _Examined) -> Iterator[Part]:
    waiting: list[Part] = []  # a part may be large: it waits only if lines that belong to it follow
    past_header = False
    for number, raw in found.source.lines():
        if number == found.torn:
            continue
        text = raw.decode()
        del raw
        line = read_json(text)
        del text
        if not past_header:
            past_header = True
        elif line["line_type"] == "event":
            if waiting:
                yield waiting.pop()
            waiting.append(part_from(line, found.repeated, number, []))
            del line
            if number not in found.followed:
                yield waiting.pop()
        elif waiting:
            extra = waiting[0].extra = waiting[0].extra or {NAME: {}}
            extra[NAME].setdefault("lines", []).append(line)
    yield from waiting
