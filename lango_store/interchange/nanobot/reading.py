"""nanobot's session files: JSON lines of three generations and the Go port, read and written byte for byte.

Times without a zone are local, as nanobot writes them: import on the same machine, or set TZ. Their text is stored
unchanged. Under `extra["nanobot"]` a session has its `key`, `generation` and `stem` (the file's name),
the `metadata` line and the `provider_state` line (or, where they were written unlike nanobot does, their text under
`metadata_line` and `provider_state_line`), and the number of messages before them, if any.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from lango_store.errors import InvalidFile, InvalidKey
from lango_store.interchange import files
from lango_store.interchange.draft import Draft, Part, Skipped
from lango_store.interchange.fidelity import check_key, known_role
from lango_store.interchange.moments import moment
from lango_store.interchange.nanobot.heads import (
    HEADS,
    OFFSETS,
    Head,
    is_storable,
    metadata_of,
    offset_of,
    read_object,
    title_of,
)
from lango_store.interchange.nanobot.lines import STYLES, Style, message_from_text, storable
from lango_store.interchange.nanobot.names import NAME, SUFFIX, decoded, key_of_name
from lango_store.interchange.source import Source

_LOOKED_AT: Final = 8 << 20  # enough to recognize the format
_COMPACT: Final = re.compile(r'\s*\{"(?:[^"\\]|\\.)*":\S')


def recognises(path: Path) -> bool:
    """Return whether a file of JSON lines is nanobot's.

    It is if one object is a message or a head. So is a file without any object: reading it reports the fault. The
    objects of a log file are neither.
    """
    if path.suffix != SUFFIX:
        return False
    others = False
    looked_at = 0
    try:
        with files.reading(path) as file:
            while looked_at < _LOOKED_AT and (line := file.readline(_LOOKED_AT)):
                looked_at += len(line)
                value = read_object(line.decode("utf-8", "replace"))
                if isinstance(value, dict):
                    if value.get("_type") in HEADS or known_role(value.get("role")):
                        return True
                    others = True
    except InvalidFile:  # reading it reports the fault
        return True
    return not others


def rank(path: Path) -> int:
    """Rank files named by today's nanobot first: an older file of the same session is out of date."""
    return int(decoded(path.stem) is None)


def read(path: Path, skipped: list[Skipped], longest_line: int = files.LONGEST_LINE) -> list[Draft]:
    """Read a session; bad lines are skipped, and `InvalidFile` says that no line could be read."""
    file = _read_file(path, longest_line)
    if file.bad and not file.lines and not file.heads:
        first = file.bad[0]
        raise InvalidFile(path, f"holds no line that can be read; line {first.line}: {first.reason}")
    skipped += file.bad
    return [_draft(path, file, skipped)]


@dataclass
class _Line:
    """A line: its number, its text and the object it says; `after` is how many messages are before it."""

    number: int
    text: str
    value: dict[str, Any]
    after: int


@dataclass
class _File:
    """The lines of a file: messages, the last metadata and provider state line, and what is wrong with others."""

    lines: list[_Line] = field(default_factory=list)
    heads: dict[Head, _Line] = field(default_factory=dict)
    bad: list[Skipped] = field(default_factory=list)
    ended: bool = True


def _read_file(path: Path, longest_line: int) -> _File:
    found = _File()
    source = Source(path, longest_line)
    with source.reading() as file:
        for number, raw in files.lines_of(file, path, longest_line):
            found.ended = raw.endswith(b"\n")
            try:
                text = raw.removesuffix(b"\n").decode()
            except UnicodeDecodeError as error:
                found.bad.append(Skipped(number, f"is not UTF-8 ({error.reason} at byte {error.start + 1})"))
                continue
            if not text or text.isspace():
                continue
            value = read_object(text)
            if isinstance(value, str):
                found.bad.append(Skipped(number, value))
                continue
            line = _Line(number, text, value, len(found.lines))
            if (head := value.get("_type")) not in HEADS:
                found.lines.append(line)
                continue
            if head in found.heads:
                found.bad.append(Skipped(found.heads[head].number, f"{head}: a later line says otherwise"))
            found.heads[head] = line
    return found


def _draft(path: Path, file: _File, skipped: list[Skipped]) -> Draft:
    head = file.heads.get("metadata")
    line = {} if head is None else head.value
    generation = _generation(path, file)
    key = _key(path, line, generation)

    def note(field: str, remedy: str) -> None:
        if head is not None and field in line:
            skipped.append(Skipped(head.number, f"{field} {_shown(line[field])}: {remedy}"))

    metadata = metadata_of(line)
    if metadata != line.get("metadata", {}):
        note("metadata", "is not an object that can be stored, {} instead")
    consolidated = offset_of(line)
    if consolidated is None or not 0 <= consolidated <= len(file.lines):
        for name in OFFSETS:
            note(name, f"is not a count of these {len(file.lines)} messages, 0 instead")
        consolidated = 0
    times = {name: moment(line.get(name), local=True) for name in ("created_at", "updated_at")}
    for name, time in times.items():
        if time is None:
            note(name, "is not a time, now instead")
    if "key" in line and line["key"] != key:
        note("key", f"is not a key, {key!r} from the file's name instead")
    return Draft(
        key=key,
        parts=[_part(STYLES[generation], skipped, line) for line in file.lines],
        fields={"metadata": metadata, "title": title_of(metadata)},
        created_at=times["created_at"],
        updated_at=times["updated_at"],
        last_consolidated=consolidated,
        extra={NAME: _raw(path, key, generation, file, times["updated_at"])},
    )


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _generation(path: Path, file: _File) -> str:
    head = file.heads.get("metadata")
    if _COMPACT.match(head.text if head else file.lines[0].text if file.lines else ""):
        return "go"
    if head is not None and "key" not in head.value and "last_consolidated" not in head.value:
        return "g0"
    line = {} if head is None else head.value
    key = decoded(path.stem)
    encoded = key is not None and line.get("key", key) == key
    return "g2" if encoded or "last_archived" in line or "provider_state" in file.heads else "g1"


def _key(path: Path, line: dict[str, Any], generation: str) -> str:
    for key in (line.get("key"), key_of_name(path.stem, generation)):
        try:
            return check_key(key)
        except InvalidKey as error:
            reason = error
    raise InvalidFile(path, f"has no key that can be stored, in its metadata or its name: rename it ({reason})")


def _raw(path: Path, key: str, generation: str, file: _File, updated_at: datetime | None) -> dict[str, Any]:
    raw: dict[str, Any] = {"key": key, "generation": generation, "stem": _printable(path.stem)}
    for name, head in file.heads.items():
        exact = STYLES[generation].dumps(head.value) == head.text and is_storable(head.value)
        raw |= {name: head.value} if exact else {f"{name}_line": head.text}
        if head.after:
            raw[f"{name}_after"] = head.after
    if updated_at is not None:
        raw["updated_at"] = updated_at.isoformat()
    if not file.ended:
        raw["ended"] = False
    return raw


def _printable(stem: str) -> str:
    return stem.encode("utf-8", "backslashreplace").decode()


def _part(style: Style, skipped: list[Skipped], line: _Line) -> Part:
    role = line.value.get("role")
    message, loss = storable(message_from_text(line.text, line.value, style), style)
    if loss is not None:
        skipped.append(Skipped(line.number, loss))
    elif not known_role(role):
        skipped.append(Skipped(line.number, f"role {_shown(role)} is not one of ours: stored as user"))
    return Part([message])
