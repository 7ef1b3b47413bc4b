"""nanobot's session files: JSON lines of three generations, and of the Go port.

The export of an unchanged session is byte for byte the imported file, if all of its lines could be read, it has no
blank lines and ends with a newline, and its metadata line, with both times, and provider state line come first.
Times without a time zone are local; their text is stored unchanged. The `extra["nanobot"]` of a session holds its
`key`, `generation`, `stem` (the file name without suffix), `metadata` line and `provider_state` line. `texts` holds the
text of a line that differs from the text that this generation of nanobot would write.

The key is read from the metadata line of a file, or derived from the file name. Fields without a column are stored in
the `extra` of the message; `last_consolidated` (or `last_archived`, if it differs), `metadata` and the `title` in it
become fields of the session. A line that cannot be read is skipped and reported; if no line can be read, no session is
created. A message with an unknown role is stored as `user`, and exported with its role. A `.jsonl` file without a
session is an error; other files of an unknown format are skipped. New sessions are exported under the base64 names of
nanobot 0.3.5, or with `names="readable"` under those of 0.2 and the Go port; if two keys have one readable name, the
second is reported and not exported.
"""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, Literal

from lango_store.errors import InvalidFile, InvalidKey, quoted
from lango_store.interchange import files
from lango_store.interchange.draft import FileParts, Part, SessionDraft, Skipped
from lango_store.interchange.fidelity import check_key, known_role, read_role
from lango_store.interchange.files import state
from lango_store.interchange.moments import moment
from lango_store.interchange.nanobot_lines import (
    HEADS,
    NAME,
    OFFSETS,
    STYLES,
    SUFFIX,
    Head,
    Style,
    decoded,
    file_name,
    is_storable,
    key_of_name,
    lines_from_message,
    message_from_text,
    metadata_of,
    metadata_out,
    offset_of,
    read_object,
    storable,
    text_from_message,
    title_of,
)
from lango_store.interchange.source import lines_in
from lango_store.rows import mapping

Names = Literal["nanobot", "readable"]
"""The names of exported files."""

_DETECTION_BYTES: Final = 8 << 20  # read at most this much of a file to detect its format
_COMPACT: Final = re.compile(r'\s*\{"(?:[^"\\]|\\.)*":\S')


def recognizes(path: Path) -> bool:
    """Return True if a `.jsonl` file is a session of nanobot: one of its objects is a message, metadata or state.

    A file without any object is accepted too, so that the import reports its fault. A log file has objects, but of
    other kinds.
    """
    if path.suffix != SUFFIX:
        return False
    has_other_objects = False
    bytes_read = 0
    try:
        with files.reading(path) as file:
            while bytes_read < _DETECTION_BYTES and (line := file.readline(_DETECTION_BYTES)):
                bytes_read += len(line)
                value = read_object(line.decode("utf-8", "replace"))
                if isinstance(value, dict):
                    if value.get("_type") in HEADS or known_role(value.get("role")):
                        return True
                    has_other_objects = True
    except InvalidFile:  # the import reports the fault
        return True
    return not has_other_objects


def rank(path: Path) -> int:
    """Rank files with a name of the current generation first, because an older file of the same session is outdated."""
    return int(decoded(path.stem) is None)


def read(path: Path, skipped: list[Skipped]) -> list[SessionDraft]:
    """Read a session. Bad lines are skipped and reported. Raises `InvalidFile` if no line can be read."""
    file = _scan(path)
    if not file.count and not file.heads:
        first = f"line {file.bad[0].line}: {file.bad[0].reason}" if file.bad else "it is empty: use another copy"
        raise InvalidFile(path, f"has no readable line; {first}")
    skipped += file.bad
    return [_draft(path, file, skipped)]


@dataclass
class _Line:
    """A line: number, text and parsed object."""

    number: int
    text: str
    value: dict[str, Any]


@dataclass
class _File:
    """A file without its messages: its state, the number of messages, its last heads, and faults of other lines.

    `is_compact` is true if the first message has the compact form of the Go port.
    """

    state: object
    count: int = 0
    is_compact: bool = False
    heads: dict[Head, _Line] = field(default_factory=dict)
    bad: list[Skipped] = field(default_factory=list)


def _scan(path: Path) -> _File:
    """Read a file without its messages, which are read later, one by one: any line can be the last metadata line."""
    file = _File(state(path))
    for line in _lines(path, file.state, file.bad):
        if (head := line.value.get("_type")) not in HEADS:
            file.is_compact = file.is_compact or (not file.count and _COMPACT.match(line.text) is not None)
            file.count += 1
            continue
        if head in file.heads:
            file.bad.append(Skipped(file.heads[head].number, f"{head}: replaced by a later line"))
        if not is_storable(line.value):
            file.bad.append(Skipped(line.number, f"{head}: values that cannot be stored are left out"))
        file.heads[head] = line
    return file


def _lines(path: Path, state: object, bad: list[Skipped]) -> Iterator[_Line]:
    for number, raw in lines_in(path, state):
        try:
            text = raw.removesuffix(b"\n").decode()
        except UnicodeDecodeError as error:
            bad.append(Skipped(number, f"is not UTF-8 ({error.reason} at byte {error.start + 1})"))
            continue
        value = read_object(text)
        if isinstance(value, str):
            bad.append(Skipped(number, value))
        else:
            yield _Line(number, text, value)


def _parts(path: Path, state: object, style: Style, skipped: list[Skipped]) -> Iterator[Part]:
    for line in _lines(path, state, []):
        if line.value.get("_type") not in HEADS:
            yield _part(style, skipped, line)


def _draft(path: Path, file: _File, skipped: list[Skipped]) -> SessionDraft:
    head = file.heads.get("metadata")
    line = {} if head is None else head.value
    generation = _generation(path, file)
    key = _key(path, line, generation)

    def note(field: str, remedy: str) -> None:
        if head is not None and field in line:
            skipped.append(Skipped(head.number, f"{field} {_shown(line[field])}: {remedy}"))

    metadata = metadata_of(line)
    if metadata != line.get("metadata", {}):
        note("metadata", "is not an object that can be stored, {} is stored instead")
    consolidated = offset_of(line)
    if consolidated is None or not 0 <= consolidated <= file.count:
        for name in OFFSETS:
            note(name, f"is not a count of these {file.count} messages, 0 is stored instead")
        consolidated = 0
    times = {name: moment(line.get(name), local=True) for name in ("created_at", "updated_at")}
    for name, time in times.items():
        if time is None:
            note(name, "is not a time, the time of the import is stored instead")
    if "key" in line and line["key"] != key:
        note("key", f"is not a key, {quoted(key)} from the file name is used instead")
    heads = {name: line for name, line in file.heads.items() if is_storable(line.value)}
    return SessionDraft(
        key=key,
        parts=FileParts(partial(_parts, path, file.state, STYLES[generation]), skipped),
        fields={"metadata": metadata, "title": title_of(metadata)},
        created_at=times["created_at"],
        updated_at=times["updated_at"],
        last_consolidated=consolidated,
        extra={NAME: _raw(path, key, generation, heads, times["updated_at"])},
    )


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _generation(path: Path, file: _File) -> str:
    head = file.heads.get("metadata")
    if _COMPACT.match(head.text) if head else file.is_compact:
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
    raise InvalidFile(path, f"has no valid key in its metadata or its name: rename the file ({reason})")


def _raw(
    path: Path, key: str, generation: str, heads: dict[Head, _Line], updated_at: datetime | None
) -> dict[str, Any]:
    stem = path.stem.encode("utf-8", "backslashreplace").decode()
    raw: dict[str, Any] = {"key": key, "generation": generation, "stem": stem}
    raw |= {name: head.value for name, head in heads.items()}
    dumps = STYLES[generation].dumps
    if texts := {name: head.text for name, head in heads.items() if dumps(head.value) != head.text}:
        raw["texts"] = texts
    return raw if updated_at is None else raw | {"updated_at": updated_at.isoformat()}


def _part(style: Style, skipped: list[Skipped], line: _Line) -> Part:
    message, loss = storable(message_from_text(line.text, line.value, style), style)
    if loss is not None:
        skipped.append(Skipped(line.number, loss))
    else:
        read_role(line.value.get("role"), skipped, line.number, "a message")
    return Part([message])


_METADATA: Final = ("_type", "key", "created_at", "updated_at", "metadata", "last_consolidated")


def write(draft: SessionDraft, folder: Path, *, replace: Collection[Path] = (), names: Names = "nanobot") -> Path:
    """Write a session in the format of its generation, by default the current one, and return the path of the file.

    An existing file with different content raises `InvalidFile` and is not changed, unless its path is in `replace`.
    With `names="readable"`, the file has the name that nanobot 0.2 and the Go port expect, whatever the generation.
    """
    raw = mapping(draft.extra.get(NAME))
    generation = str(raw.get("generation"))
    if generation not in STYLES:
        generation = "g2"
    path = folder / file_name(draft.key, "g1" if names == "readable" else generation)
    with files.atomic_writer(path, replace=path in replace) as file:
        for text in _texts(draft, raw, STYLES[generation]):
            file.write(f"{text}\n".encode())
    return path


def _texts(draft: SessionDraft, raw: dict[str, Any], style: Style) -> Iterator[str]:
    texts = mapping(raw.get("texts"))
    yield _head_text(_metadata_line(draft, mapping(raw.get("metadata")), raw, style), texts.get("metadata"), style)
    if isinstance(raw.get("provider_state"), dict):
        yield _head_text(raw["provider_state"], texts.get("provider_state"), style)
    for message in draft.messages:
        yield from text_from_message(message, style)


def _head_text(line: dict[str, Any], imported: Any, style: Style) -> str:
    """Return a line as text: the imported text if it has the same content."""
    text = style.dumps(line)
    return imported if isinstance(imported, str) and style.dumps(read_object(imported)) == text else text


def _metadata_line(draft: SessionDraft, imported: dict[str, Any], raw: dict[str, Any], style: Style) -> dict[str, Any]:
    """Return the imported metadata line with the changes that were made in the store."""
    line = dict(imported) if imported else dict.fromkeys(_METADATA)
    line["_type"] = "metadata"
    if "key" in line:
        line["key"] = draft.key
    if moment(imported.get("created_at"), local=True) is None:
        line["created_at"] = style.stamp(draft.created_at) if draft.created_at else None
    is_known = bool(imported) and moment(raw.get("updated_at"), local=True) == draft.updated_at
    if draft.updated_at is not None and not is_known:
        line["updated_at"] = style.stamp(draft.updated_at)
    metadata = metadata_out(draft.fields, imported)
    if metadata != metadata_of(imported) or not isinstance(line.get("metadata", {}), dict):
        line["metadata"] = metadata
    consolidated = _consolidated_lines(draft, style)
    if offset_of(line) != consolidated:
        line |= {name: consolidated for name in OFFSETS if name in line}
        if consolidated:
            line.setdefault("last_consolidated", consolidated)  # every generation reads this name
    return line


def _consolidated_lines(draft: SessionDraft, style: Style) -> int:
    """Count the lines that a model no longer sees: consolidated messages, and messages replaced by a summary."""
    consolidated = takewhile(
        lambda item: item[0] < draft.last_consolidated or item[1].seq <= draft.summarized_upto,
        enumerate(draft.messages),
    )
    return sum(len(lines_from_message(message, style)) for _, message in consolidated)
