"""Dive's session files: a header line, then one line for each event, which is a turn or a compaction.

Data without a field of ours is stored in the `extra["dive"]` of a turn or a message, as described in `fidelity`. The
`extra["dive"]` of the session holds the whole `header`.

Both formats are read: the first, in which a compaction replaced all events, and the current one. An event becomes a
turn with its id, usage and metadata; content blocks are stored unchanged. A last line that is cut off, and lines of an
unknown type, are skipped and reported. Any other bad line is an error, and nothing of the file is imported.

An imported session is exported equal as JSON, with nanoseconds and suspended calls. A message outside a turn is written
as a separate event. Dive's files cannot hold `author`, `name`, agent, user, model, settings, tool definitions, token
counts of messages and the TTL. Messages that were appended while a summary was made are written after the compaction,
because Dive shows a model only the last compaction and what follows. `/`, `\\` and `..` in a key are percent-escaped in
the file name.
"""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lango_store import Message
from lango_store.errors import InvalidFile, InvalidKey, quoted
from lango_store.interchange.dive_fields import (
    NAME,
    columns,
    event_of,
    header_of,
    id_fault,
    key_of,
    part_from,
    raw_of,
    suspension_of,
)
from lango_store.interchange.draft import FileParts, Part, SessionDraft, Skipped
from lango_store.interchange.fidelity import NotJson, json_bytes, read_json, restored
from lango_store.interchange.files import atomic_writer, state
from lango_store.interchange.moments import go_text, nanoseconds
from lango_store.interchange.source import MAX_NAME, checked_file_key, first_bytes, lines_in
from lango_store.rows import mapping, storable_id

_START: Final = re.compile(rb'\s*\{\s*"line_type"\s*:')

_Line = tuple[int, dict[str, Any]]


def recognizes(path: Path) -> bool:
    """Return True if the name and the first bytes of a file match a session of Dive."""
    return path.suffix == ".jsonl" and _START.match(first_bytes(path, 200)) is not None


def read(path: Path, skipped: list[Skipped]) -> list[SessionDraft]:
    """Read a session. An incomplete last line is skipped; any other bad line raises `InvalidFile`."""
    before = state(path)
    lines = _lines(path, before, skipped)
    _, first = next(lines, (0, {}))
    if not first:
        raise InvalidFile(path, "has no header line: give a session file of Dive")
    if first["line_type"] != "header":
        raise InvalidFile(
            path, f"starts with {quoted(first['line_type'])}, not with a header: give a session file of Dive"
        )
    header = first["data"]
    id = header.get("id")
    if fault := id_fault(id):
        raise InvalidFile(path, f"its id {quoted(id)} {fault}, which Dive does not accept: correct the header")
    raw: dict[str, Any] = {"header": header}
    seen: set[str] = set()
    repeated: set[str] = set()
    last_time = None
    for _, event in _events_of(lines, skipped):
        for each in _ids_of(event):
            (repeated if each in seen else seen).add(each)
        last_time = event.get("timestamp")
    if (nanoseconds(last_time) or 0) > (nanoseconds(header.get("updated_at")) or 0):
        raw["updated_at"] = last_time
    values = columns(raw)
    suspended = suspension_of(header)

    def parts(skipped: list[Skipped]) -> Iterator[Part]:
        lines = _lines(path, before, [])
        next(lines)
        for number, event in _events_of(lines, []):
            yield part_from(event, repeated, number, skipped)

    return [
        SessionDraft(
            key=checked_file_key(path, key_of(str(id))),
            parts=FileParts(parts, skipped),
            fields={name: values[name] for name in ("title", "metadata") if values[name]},
            created_at=values["created_at"],
            updated_at=values["updated_at"],
            forked_from=values["forked_from"],
            extra={NAME: raw},
            suspensions=[] if suspended is None else [suspended],
        )
    ]


def _events_of(lines: Iterator[_Line], skipped: list[Skipped]) -> Iterator[_Line]:
    for number, line in lines:
        if line["line_type"] == "event":
            yield number, line["data"]
        else:
            skipped.append(Skipped(number, f"a line of type {quoted(line['line_type'])} is not an event: left out"))


def _ids_of(event: dict[str, Any]) -> Iterator[str]:
    """Yield the ids of an event and its messages, each prefixed with its kind."""
    yield f"event {storable_id(event.get('id'))}"
    for message in event.get("messages") or []:
        yield f"message {storable_id(message.get('id'))}"


def _lines(path: Path, before: object, skipped: list[Skipped]) -> Iterator[_Line]:
    raw_lines = lines_in(path, before)
    for number, raw in raw_lines:
        is_torn = False
        try:
            line = read_json(raw.decode())
            fault = _fault(line)
        except (UnicodeDecodeError, NotJson) as error:
            is_torn = next(raw_lines, None) is None
            fault = f"is not UTF-8 ({error})" if isinstance(error, UnicodeDecodeError) else str(error)
        except ValueError as error:  # valid JSON that cannot be stored
            fault = str(error)
        if is_torn:
            skipped.append(Skipped(number, "the last line is incomplete: left out"))
        elif fault:
            raise InvalidFile(path, f"line {number} {fault}: fix or remove the line; the file was not changed")
        else:
            if set(line) - {"line_type", "data"}:
                skipped.append(Skipped(number, "has members other than line_type and data: left out"))
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


_ESCAPES: Final = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})


def write(draft: SessionDraft, folder: Path, *, replace: Collection[Path] = ()) -> Path:
    """Write a session to the file that Dive opens for its id. Raises `InvalidKey` if the file name would be too long.

    Dive shows a model the last compaction and the messages after it. A compaction is therefore written before the
    messages that were appended while its summary was being made.
    """
    header = header_of(draft, mapping(draft.extra.get(NAME)))
    path = folder / f"{header['id']}.jsonl"
    if len(path.name.encode()) > MAX_NAME:
        raise InvalidKey(
            f"session key {quoted(draft.key)} is too long for the file name that Dive derives from it: "
            "fork the session to a shorter key"
        )
    with atomic_writer(path, replace=path in replace) as file:
        file.write(_bytes_of("header", header))
        for number, event in enumerate((each for part in _in_dive_order(draft) for each in _events(part)), 1):
            # The "s" keeps these ids different from ids that Dive generates.
            new_id = {"id": f"evt-{nanoseconds(go_text(event.created_at))}-s{number}"}
            file.write(_bytes_of("event", restored(new_id | event_of(event), raw_of(event))))
    return path


def _bytes_of(line_type: str, data: dict[str, Any]) -> bytes:
    line = {"line_type": line_type, "data": data}
    text = json.dumps(line, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return json_bytes(text.translate(_ESCAPES)) + b"\n"


def _events(part: Part) -> Iterator[Part]:
    """Yield a turn or a compaction unchanged; yield each message of any other part as a separate event."""
    if part.kind is not None:
        yield part
        return
    for message in part.messages:
        yield Part([message], created_at=message.created_at or part.created_at)


def _in_dive_order(draft: SessionDraft) -> Iterator[Part]:
    early = _early(draft)
    moved = {compaction.first_seq for _, compaction in early}
    for part in draft.parts:
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


def _early(draft: SessionDraft) -> list[tuple[int, Part]]:
    """Return the compactions during which messages were appended, each with the seq that it has to follow."""
    early = []
    last, floor = 0, 0
    for part in draft.parts:
        if part.kind == "compaction" and part.replaced_upto is not None:
            upto = max(part.replaced_upto, floor)  # never before an earlier compaction
            if last > upto:
                early.append((upto, part))
            floor = max(upto, _last_seq(part.messages))
        last = max(last, _last_seq(part.messages))
    return early


def _split(part: Part, upto: int) -> tuple[Part | None, Part]:
    before: list[Message] = [message for message in part.messages if message.seq <= upto]
    if not before:
        return None, part
    after = [message for message in part.messages if message.seq > upto]
    return replace(part, messages=before), Part(after, created_at=part.created_at)


def _last_seq(messages: list[Message]) -> int:
    return messages[-1].seq if messages else 0
