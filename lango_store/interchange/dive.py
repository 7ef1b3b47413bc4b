"""Dive's session files: a header line, then a line for each event, a turn or a compaction.

A part's and a message's `extra["dive"]` hold what our fields cannot give back, see `fidelity`; the session's holds the
whole `header`. Lines of a type that Dive does not know either are kept as `lines`, with the event that they follow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from lango_store.errors import InvalidFile, InvalidKey
from lango_store.interchange.dive_messages import message_from, message_to
from lango_store.interchange.dive_names import id_of, key_of
from lango_store.interchange.draft import Draft, Part, Skipped
from lango_store.interchange.fidelity import difference, kept_id, kept_text, mapping, restored, same
from lango_store.interchange.files import LONGEST_LINE, writing
from lango_store.interchange.json_text import strict_json
from lango_store.interchange.moments import go_text, moment, nanoseconds
from lango_store.interchange.source import MAX_NAME, Source, checked_file_key, first_bytes
from lango_store.model import Message

NAME: Final = "dive"

_START: Final = re.compile(rb'\s*\{\s*"line_type"\s*:')
_ESCAPES: Final = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})


def recognises(path: Path) -> bool:
    """Tell by a file's name and first bytes whether it is a session of Dive."""
    return path.suffix == ".jsonl" and _START.match(first_bytes(path, 200)) is not None


def read(path: Path, skipped: list[Skipped], longest_line: int = LONGEST_LINE) -> list[Draft]:
    """Read a session; a torn last line is dropped, a bad line elsewhere is `InvalidFile`."""
    found = _examined(Source(path, longest_line), skipped)
    header = found.header or {}
    id = header.get("id")
    if fault := _id_fault(id):
        raise InvalidFile(path, f"its id {id!r} {fault}: Dive takes no such id, correct the header")
    kept: dict[str, Any] = {"header": header}
    if (nanoseconds(found.last_time) or 0) > (nanoseconds(header.get("updated_at")) or 0):
        kept["updated_at"] = found.last_time
    kept |= found.beside
    columns = _columns(kept)
    return [
        Draft(
            key=checked_file_key(path, key_of(str(id))),
            parts=lambda: _parts(found),
            fields={name: columns[name] for name in ("title", "metadata") if columns[name]},
            created_at=columns["created_at"],
            updated_at=columns["updated_at"],
            forked_from=columns["forked_from"],
            extra={NAME: kept},
        )
    ]


def write(draft: Draft, folder: Path, *, replace: bool = False) -> Path:
    """Write a session to the file that Dive opens under its id; `InvalidKey` if that is too long for a file's name.

    Dive shows a model the last compaction and what follows. Messages that came in while the summary was written belong
    to that, so the compaction is written before them.
    """
    header = _header(draft, mapping(draft.extra.get(NAME)))
    path = folder / f"{header['id']}.jsonl"
    if len(path.name.encode()) > MAX_NAME:
        raise InvalidKey(
            f"session key {draft.key!r} is too long for a file's name, which Dive's ids are: fork it to another key"
        )
    with writing(path, replace=replace) as file:
        for line in _lines(draft, header):
            text = json.dumps(line, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            # A lone surrogate has no UTF-8; its JSON escape is what backslashreplace writes.
            file.write(text.translate(_ESCAPES).encode("utf-8", "backslashreplace") + b"\n")
    return path


def _id_fault(id: object) -> str | None:
    if not isinstance(id, str) or id in ("", "."):
        return "is none"
    return next((f"holds {part!r}" for part in ("..", "/", "\\") if part in id), None)


# In


@dataclass
class _Examined:
    """What has to be known of a file before its events are handed out."""

    source: Source
    header: dict[str, Any] | None = None
    beside: dict[str, Any] = field(default_factory=dict)  # what else the header's place in the file holds
    last_time: Any = None
    torn: int | None = None
    repeated: set[str] = field(default_factory=set)  # message ids
    repeated_events: set[str] = field(default_factory=set)


def _examined(source: Source, skipped: list[Skipped]) -> _Examined:
    """Read the file once, to the end, so that what is wrong with it is known before anything is kept."""
    found = _Examined(source)
    seen: set[str] = set()
    seen_events: set[str] = set()
    has_events, no_id_repeated = False, _Examined(source)
    for number, line in _sound_lines(found, skipped):
        if found.header is None:
            found.header, found.beside = _header_from(source.path, line)
            continue
        if line.get("line_type") == "event":
            part = _part_from(line, no_id_repeated, number, skipped)
            has_events, found.last_time = True, line["data"].get("timestamp")
            _note([part.id], seen_events, found.repeated_events)
            _note([message.id for message in part.messages], seen, found.repeated)
        else:
            skipped.append(
                Skipped(number, f"a line of type {line.get('line_type')!r} is no event: kept for export only")
            )
            if not has_events:
                found.beside.setdefault("lines", []).append(line)
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
    for number, text in found.source.lines():
        if bad:
            raise InvalidFile(path, f"line {bad[0]} {bad[1]}: mend or remove it, the file was left alone")
        try:
            line = strict_json(text.decode())
            fault = _fault(line)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            bad = number, f"is no JSON ({error})"
            continue
        except ValueError as error:  # JSON that is whole, and cannot be kept
            fault = str(error)
        if fault:
            raise InvalidFile(path, f"line {number} {fault}: mend or remove it, the file was left alone")
        yield number, line
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
        return "has messages that are none"
    wrong = [name for name in ("usage", "metadata") if not isinstance(data.get(name) or {}, dict)]
    return f"has {wrong[0]} that is no object" if wrong else None


def _header_from(path: Path, line: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    if line["line_type"] != "header":
        raise InvalidFile(path, f"begins with {line['line_type']!r}, not with a header: give a session file of Dive")
    return line["data"], _beside(line)


def _beside(line: dict[str, Any]) -> dict[str, Any]:
    beside = {name: value for name, value in line.items() if name not in ("line_type", "data")}
    return {"beside": beside} if beside else {}


def _columns(kept: dict[str, Any]) -> dict[str, Any]:
    """Read what we have columns for from a header as it was kept."""
    header = mapping(kept.get("header"))
    return {
        "id": _as_key(header.get("id")),
        "title": kept_text(header.get("title")),
        "created_at": moment(header.get("created_at")),
        "updated_at": moment(kept.get("updated_at", header.get("updated_at"))),
        "metadata": mapping(header.get("metadata")),
        "forked_from": _as_key(kept_text(header.get("forked_from"))),
    }


def _as_key(id: Any) -> Any:
    return key_of(id) if isinstance(id, str) else id


def _parts(found: _Examined) -> Iterator[Part]:
    waiting: Part | None = None
    past_header = False
    for number, text in found.source.lines():
        if number == found.torn:
            continue
        line = strict_json(text.decode())
        if past_header and line["line_type"] == "event":
            if waiting is not None:
                yield waiting
            waiting = _part_from(line, found, number, [])
        elif waiting is not None:
            waiting.extra = waiting.extra or {NAME: {}}
            waiting.extra[NAME].setdefault("lines", []).append(line)
        past_header = True
    if waiting is not None:
        yield waiting


def _part_from(line: dict[str, Any], found: _Examined, number: int, skipped: list[Skipped]) -> Part:
    event = line["data"]
    created_at = moment(event.get("timestamp"))
    id = kept_id(event.get("id"))
    part = Part(
        messages=[
            message_from(message, created_at, found.repeated, number, skipped)
            for message in event.get("messages") or []
        ],
        kind="compaction" if event.get("type") == "compaction" else "turn",
        id=None if id in found.repeated_events else id,
        usage=event.get("usage") or None,
        metadata=event.get("metadata") or None,
        created_at=created_at,
    )
    original = {name: value for name, value in event.items() if name != "messages" or not value}
    written = {name: value for name, value in _event(part).items() if name != "messages" or not value}
    kept = difference(original, written) | _beside(line)
    part.extra = {NAME: kept} if kept else None
    return part


# Out


def _lines(draft: Draft, header: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kept = mapping(draft.extra.get(NAME))
    yield {"line_type": "header", "data": header, **mapping(kept.get("beside"))}
    yield from kept.get("lines") or []
    number = 0
    for part in _in_dives_order(draft):
        for event in _events(part):
            number += 1
            kept = _kept(event)
            # Dive's own ids end in a number without the s.
            made_up = {"id": f"evt-{nanoseconds(go_text(event.created_at))}-s{number}"}
            data = restored(made_up | _event(event), kept)
            yield {"line_type": "event", "data": data, **mapping(kept.get("beside"))}
            yield from kept.get("lines") or []


def _kept(part: Part) -> dict[str, Any]:
    return mapping((part.extra or {}).get(NAME))


def _header(draft: Draft, kept: dict[str, Any]) -> dict[str, Any]:
    """Give the header as it came, with what has changed since."""
    header = dict(mapping(kept.get("header")))
    is_new = not header
    came = _columns(kept)
    given: dict[str, Any] = {
        "id": draft.key,
        "title": draft.fields.get("title"),
        "created_at": draft.created_at,
        "updated_at": draft.updated_at,
        "metadata": draft.fields.get("metadata") or {},
        "forked_from": draft.forked_from,
    }
    for name, value in given.items():
        if name.endswith("_at"):
            if is_new or came[name] not in (None, value):
                header[name] = go_text(value)
        elif not same(value, came[name]):
            header[name] = id_of(value) if value and name in ("id", "forked_from") else value
            if not value:
                del header[name]
    return header


def _event(part: Part) -> dict[str, Any]:
    always = {
        "type": part.kind or "turn",
        "timestamp": go_text(part.created_at),
        "messages": [message_to(message) for message in part.messages] or None,
    }
    given = {"usage": part.usage, "metadata": part.metadata}
    return ({"id": part.id} if part.id else {}) | always | {name: value for name, value in given.items() if value}


def _events(part: Part) -> Iterator[Part]:
    """Give a turn or a compaction as it is, and a message that belongs to none as an event of its own."""
    if part.kind is not None:
        yield part
        return
    for message in part.messages:
        yield Part([message], created_at=message.created_at or part.created_at)


def _in_dives_order(draft: Draft) -> Iterator[Part]:
    early = _early(draft)
    moved = {compaction.first_seq for _, compaction in early}
    for part in draft.parts():
        if part.kind == "compaction" and part.first_seq in moved:
            continue
        rest = part
        while early and _last_seq(rest.messages) > early[0][0]:
            upto, compaction = early.pop(0)
            before, rest = _split(rest, upto)
            if before is not None:
                yield before
            yield compaction
        yield rest


def _early(draft: Draft) -> list[tuple[int, Part]]:
    """Find the compactions that something came in under, each with the seq that it has to follow."""
    found = []
    last, floor = 0, 0
    for part in draft.parts():
        if part.kind == "compaction" and part.replaced_upto is not None:
            upto = max(part.replaced_upto, floor)  # never before an earlier compaction
            if last > upto:
                found.append((upto, part))
            floor = max(upto, _last_seq(part.messages))
        last = max(last, _last_seq(part.messages))
    return found


def _split(part: Part, upto: int) -> tuple[Part | None, Part]:
    before: list[Message] = [message for message in part.messages if message.seq <= upto]
    if not before:
        return None, part
    after = [message for message in part.messages if message.seq > upto]
    return replace(part, messages=before), Part(after, created_at=part.created_at)


def _last_seq(messages: list[Message]) -> int:
    return messages[-1].seq if messages else 0
