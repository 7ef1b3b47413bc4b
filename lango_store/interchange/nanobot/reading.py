"""nanobot's session files: JSON lines, in three generations and the Go port's, in and out, byte for byte.

A time without a zone is this machine's, as nanobot writes it: run where nanobot ran, or set TZ. Its text is stored, and
comes back as it was. Under `extra["nanobot"]` a session has its `key`, `generation` and `stem` (the file's name),
the `metadata` line and the `provider_state` line (or, where they were written unlike nanobot does, their text under
`metadata_line` and `provider_state_line`), and how many messages stood before them, if any.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from lango_store.backup import files
from lango_store.errors import InvalidFile, InvalidKey
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

_SAMPLE: Final = 1_000
_LOOKED_AT: Final = 8 << 20  # what comes later says nothing about whose file it is
_COMPACT: Final = re.compile(r'\s*\{"(?:[^"\\]|\\.)*":\S')


def recognises(path: Path) -> bool:
    """Whether a file of JSON lines is one of nanobot's, by its lines, damaged ones too.

    One object that is a message or a head makes it one, and so does a file without any object, of which reading says
    what is wrong with it. A log has objects, and none of them is nanobot's.
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
    """Read the names of today's nanobot first: where it left an older file behind, that one is out of date."""
    return int(decoded(path.stem) is None)


def read(path: Path, skipped: list[Skipped], longest_line: int = files.LONGEST_LINE) -> list[Draft]:
    """Read a session; bad lines are skipped, and `InvalidFile` says that no line could be read."""
    survey = _surveyed(path, longest_line)
    if survey.bad and not survey.messages and not survey.heads:
        first = survey.bad[0]
        raise InvalidFile(path, f"holds no line that can be read; line {first.line}: {first.reason}")
    skipped += survey.bad
    return [_draft(path, survey, skipped)]


@dataclass
class _Head:
    """A metadata or provider state line: its number, text and object, and how many messages stand before it."""

    number: int
    text: str
    value: dict[str, Any]
    after: int


@dataclass
class _Survey:
    """What a first reading of a file tells: how many messages, which lines are bad, and the last of the other lines."""

    messages: int = 0
    heads: dict[Head, _Head] = field(default_factory=dict)
    bad: list[Skipped] = field(default_factory=list)
    sample: str = ""
    ended: bool = True
    state: object = None
    longest_line: int = files.LONGEST_LINE


def _surveyed(path: Path, longest_line: int) -> _Survey:
    survey = _Survey(state=files.state(path), longest_line=longest_line)
    for line in _lines(path, longest_line, survey):
        if isinstance(line.value, str):
            survey.bad.append(Skipped(line.number, line.value))
        elif (head := line.value.get("_type")) in HEADS:
            if head in survey.heads:
                survey.bad.append(Skipped(survey.heads[head].number, f"{head}: a later line says otherwise"))
            survey.heads[head] = _Head(line.number, line.text, line.value, survey.messages)
        else:
            survey.messages += 1
            survey.sample = survey.sample or line.text[:_SAMPLE]
        del line  # it may be large, and the next one is read before it is replaced
    return survey


@dataclass
class _Read:
    """A line's number, its text, and the object it says, or the reason why it says none."""

    number: int
    text: str
    value: dict[str, Any] | str


def _lines(path: Path, longest_line: int, survey: _Survey | None = None) -> Iterator[_Read]:
    """Yield the lines that are not blank; a line may be large, and its reader is the only one to hold it."""
    waiting: list[_Read] = []
    with files.reading(path) as file:
        for number, raw in files.lines_of(file, path, longest_line):
            if survey is not None:
                survey.ended = raw.endswith(b"\n")
            try:
                text = raw.removesuffix(b"\n").decode()
            except UnicodeDecodeError as error:
                yield _Read(number, "", f"is not UTF-8 ({error.reason} at byte {error.start + 1})")
                continue
            del raw
            if text and not text.isspace():
                waiting.append(_Read(number, text, read_object(text)))
                del text
                yield waiting.pop()


def _draft(path: Path, survey: _Survey, skipped: list[Skipped]) -> Draft:
    head = survey.heads.get("metadata")
    line = {} if head is None else head.value
    generation = _generation(path, survey)
    key = _key(path, line, generation)

    def note(field: str, remedy: str) -> None:
        if head is not None and field in line:
            skipped.append(Skipped(head.number, f"{field} {_shown(line[field])}: {remedy}"))

    metadata = metadata_of(line)
    if metadata != line.get("metadata", {}):
        note("metadata", "is not an object that can be stored, {} instead")
    consolidated = offset_of(line)
    if consolidated is None or not 0 <= consolidated <= survey.messages:
        for name in OFFSETS:
            note(name, f"is not a count of these {survey.messages} messages, 0 instead")
        consolidated = 0
    times = {name: moment(line.get(name), local=True) for name in ("created_at", "updated_at")}
    for name, time in times.items():
        if time is None:
            note(name, "is not a time, now instead")
    if "key" in line and line["key"] != key:
        note("key", f"is not a key, {key!r} from the file's name instead")
    return Draft(
        key=key,
        parts=lambda: _parts(path, survey, STYLES[generation], skipped),
        fields={"metadata": metadata, "title": title_of(metadata)},
        created_at=times["created_at"],
        updated_at=times["updated_at"],
        last_consolidated=consolidated,
        extra={NAME: _raw(path, key, generation, survey, times["updated_at"])},
    )


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _generation(path: Path, survey: _Survey) -> str:
    head = survey.heads.get("metadata")
    if _COMPACT.match(survey.sample if head is None else head.text):
        return "go"
    if head is not None and "key" not in head.value and "last_consolidated" not in head.value:
        return "g0"
    line = {} if head is None else head.value
    key = decoded(path.stem)
    encoded = key is not None and line.get("key", key) == key
    return "g2" if encoded or "last_archived" in line or "provider_state" in survey.heads else "g1"


def _key(path: Path, line: dict[str, Any], generation: str) -> str:
    for key in (line.get("key"), key_of_name(path.stem, generation)):
        try:
            return check_key(key)
        except InvalidKey as error:
            reason = error
    raise InvalidFile(path, f"has no key that can be stored, in its metadata or its name: rename it ({reason})")


def _raw(path: Path, key: str, generation: str, survey: _Survey, updated_at: datetime | None) -> dict[str, Any]:
    raw: dict[str, Any] = {"key": key, "generation": generation, "stem": _printable(path.stem)}
    for name, head in survey.heads.items():
        exact = STYLES[generation].dumps(head.value) == head.text and is_storable(head.value)
        raw |= {name: head.value} if exact else {f"{name}_line": head.text}
        if head.after:
            raw[f"{name}_after"] = head.after
    if updated_at is not None:
        raw["updated_at"] = updated_at.isoformat()
    if not survey.ended:
        raw["ended"] = False
    return raw


def _printable(stem: str) -> str:
    return stem.encode("utf-8", "backslashreplace").decode()


def _parts(path: Path, survey: _Survey, style: Style, skipped: list[Skipped]) -> Iterator[Part]:
    yield from filter(None, map(partial(_part, style, skipped), _lines(path, survey.longest_line)))
    if files.state(path) != survey.state:
        raise InvalidFile(path, "changed while it was read: stop nanobot, then import again")


def _part(style: Style, skipped: list[Skipped], line: _Read) -> Part | None:
    if isinstance(line.value, str) or line.value.get("_type") in HEADS:
        return None
    role = line.value.get("role")
    message = message_from_text(line.text, line.value, style)
    line.text = ""  # it may be large, and so is what the database will be given
    message, loss = storable(message, style)
    if loss is not None:
        skipped.append(Skipped(line.number, loss))
    elif not known_role(role):
        skipped.append(Skipped(line.number, f"role {_shown(role)} is not one of ours: stored as user"))
    return Part([message])
