"""Dive's session files: a header line, then a line for each event, a turn or a compaction.

A part's and a message's `extra["dive"]` hold what our fields cannot give back, see `fidelity`; the session's holds the
whole `header`. Lines of a type that Dive does not know either are in `lines`, with the event that they follow.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, Final

from lango_store.errors import InvalidFile
from lango_store.interchange.dive.fields import beside, columns, part_from
from lango_store.interchange.dive.names import NAME, id_fault, key_of
from lango_store.interchange.draft import Draft, Part, Skipped
from lango_store.interchange.fidelity import storable_id
from lango_store.interchange.files import LONGEST_LINE
from lango_store.interchange.json_text import NotJson, read_json
from lango_store.interchange.moments import nanoseconds
from lango_store.interchange.source import Source, checked_file_key, first_bytes

_START: Final = re.compile(rb'\s*\{\s*"line_type"\s*:')

_Line = tuple[int, dict[str, Any]]


def recognises(path: Path) -> bool:
    """Return whether a file is a session of Dive, by its name and first bytes."""
    return path.suffix == ".jsonl" and _START.match(first_bytes(path, 200)) is not None


def read(path: Path, skipped: list[Skipped], longest_line: int = LONGEST_LINE) -> list[Draft]:
    """Read a session; a torn last line is dropped, a bad line elsewhere is `InvalidFile`."""
    lines = list(_lines(Source(path, longest_line), skipped))
    if not lines:
        raise InvalidFile(path, "has no header line: give a session file of Dive")
    (_, first), *lines = lines
    if first["line_type"] != "header":
        raise InvalidFile(path, f"begins with {first['line_type']!r}, not with a header: give a session file of Dive")
    header = first["data"]
    id = header.get("id")
    if fault := id_fault(id):
        raise InvalidFile(path, f"its id {id!r} {fault}: Dive takes no such id, correct the header")
    times = [line["data"].get("timestamp") for _, line in lines if line["line_type"] == "event"]
    raw: dict[str, Any] = {"header": header}
    if times and (nanoseconds(times[-1]) or 0) > (nanoseconds(header.get("updated_at")) or 0):
        raw["updated_at"] = times[-1]
    raw |= beside(first)
    parts = _parts(lines, raw, skipped)
    values = columns(raw)
    return [
        Draft(
            key=checked_file_key(path, key_of(str(id))),
            parts=parts,
            fields={name: values[name] for name in ("title", "metadata") if values[name]},
            created_at=values["created_at"],
            updated_at=values["updated_at"],
            forked_from=values["forked_from"],
            extra={NAME: raw},
        )
    ]


def _parts(lines: list[_Line], raw: dict[str, Any], skipped: list[Skipped]) -> list[Part]:
    """Read the events; another line is stored with the event before it, or with the header."""
    repeated = _repeated_ids(lines)
    parts: list[Part] = []
    for number, line in lines:
        if line["line_type"] == "event":
            parts.append(part_from(line, repeated, number, skipped))
            continue
        skipped.append(Skipped(number, f"a line of type {line['line_type']!r} is not an event: stored for export only"))
        if parts:
            extra = parts[-1].extra = parts[-1].extra or {NAME: {}}
            extra[NAME].setdefault("lines", []).append(line)
        else:
            raw.setdefault("lines", []).append(line)
    return parts


def _repeated_ids(lines: list[_Line]) -> Container[str]:
    """Return the ids that several events or several messages have, each after its kind."""
    counts: Counter[str] = Counter()
    for _, line in lines:
        if line["line_type"] == "event":
            counts[f"event {storable_id(line['data'].get('id'))}"] += 1
            counts.update(f"message {storable_id(each.get('id'))}" for each in line["data"].get("messages") or [])
    return {id for id, count in counts.items() if count > 1}


def _lines(source: Source, skipped: list[Skipped]) -> Iterator[_Line]:
    raw_lines = list(source.lines())
    for number, raw in raw_lines:
        is_torn = False
        try:
            line = read_json(raw.decode())
            fault = _fault(line)
        except (UnicodeDecodeError, NotJson) as error:
            is_torn = number == raw_lines[-1][0]
            fault = f"is not UTF-8 ({error})" if isinstance(error, UnicodeDecodeError) else str(error)
        except ValueError as error:  # JSON that is whole, and cannot be stored
            fault = str(error)
        if is_torn:
            skipped.append(Skipped(number, "the last line is torn: dropped"))
        elif fault:
            raise InvalidFile(source.path, f"line {number} {fault}: fix or remove the line; the file was not changed")
        else:
            yield number, line


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
