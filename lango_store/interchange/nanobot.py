"""nanobot's session files: JSON lines, in three generations and the Go port's, in and out, byte for byte.

A time without a zone is this machine's, as nanobot writes it: run where nanobot ran, or set TZ. Its text is kept, and
comes back as it was. Under `extra["nanobot"]` a session keeps its `key`, `generation` and `stem` (the file's name),
the `metadata` line and the `provider_state` line (or, where they were written unlike nanobot does, their text under
`metadata_line` and `provider_state_line`), and how many messages stood before them, if any.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final, Literal

from lango_store.columns import checked_key, encode_json, encode_text
from lango_store.errors import InvalidFile, InvalidKey, InvalidMessage
from lango_store.interchange import files
from lango_store.interchange.draft import Draft, Part, Skipped
from lango_store.interchange.nanobot_lines import (
    STYLES,
    Style,
    known_role,
    lines_from_message,
    message_from_text,
    moment,
    text_from_message,
)
from lango_store.model import Message

NAME: Final = "nanobot"

_SUFFIX: Final = ".jsonl"
_PAGE: Final = 200
_UNSAFE: Final = re.compile(r'[<>:"/\\|?*]')
_BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])')
_MAX_LEVELS: Final = 201  # a value of 200 levels in its line
_COMPACT: Final = re.compile(r'\s*\{"(?:[^"\\]|\\.)*":\S')

Head = Literal["metadata", "provider_state"]
_HEADS: Final[tuple[Head, ...]] = ("metadata", "provider_state")
_METADATA: Final = ("_type", "key", "created_at", "updated_at", "metadata", "last_consolidated")


# Names


def file_name(key: str, generation: str) -> str:
    """Give the name under which a generation of nanobot looks for a session."""
    stem = _encoded(key) if generation == "g2" else _UNSAFE.sub("_", key).strip()
    return f"{stem}{_SUFFIX}"


def _encoded(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def _decoded(stem: str) -> str | None:
    try:
        key = base64.urlsafe_b64decode(stem + "=" * (-len(stem) % 4)).decode()
    except ValueError:
        return None
    return key if key and _encoded(key) == stem else None


def recognises(path: Path) -> bool:
    """Take any file of JSON lines, damaged ones too; formats that are told by their first line are asked first."""
    return path.suffix == _SUFFIX


def rank(path: Path) -> int:
    """Read the names of today's nanobot first: where it left an older file behind, that one is out of date."""
    return int(_decoded(path.stem) is None)


# In


def read(path: Path, skipped: list[Skipped]) -> list[Draft]:
    """Read a session; bad lines are skipped, and `InvalidFile` says that no line could be read."""
    survey = _surveyed(path)
    if survey.bad and not survey.messages and not survey.heads:
        first = survey.bad[0]
        raise InvalidFile(path, f"holds no line that can be read; line {first.line}: {first.reason}")
    skipped += survey.bad
    return [_draft(path, survey, skipped)]


@dataclass
class _Line:
    """A metadata or provider state line: its number, text and object, and how many messages stand before it."""

    number: int
    text: str
    value: dict[str, Any]
    after: int


@dataclass
class _Survey:
    """What a first reading of a file tells: how many messages, which lines are bad, and the last of the other lines."""

    messages: int = 0
    heads: dict[Head, _Line] = field(default_factory=dict)
    bad: list[Skipped] = field(default_factory=list)
    sample: str = ""
    ended: bool = True
    state: object = None


def _surveyed(path: Path) -> _Survey:
    survey = _Survey(state=files.state(path))
    for number, text, line in _lines(path, survey):
        if isinstance(line, str):
            survey.bad.append(Skipped(number, line))
        elif (head := line.get("_type")) in _HEADS:
            if head in survey.heads:
                survey.bad.append(Skipped(survey.heads[head].number, f"{head}: a later line says otherwise"))
            survey.heads[head] = _Line(number, text, line, survey.messages)
        else:
            survey.messages += 1
            survey.sample = survey.sample or text
    return survey


def _lines(path: Path, survey: _Survey | None = None) -> Iterator[tuple[int, str, dict[str, Any] | str]]:
    """Read lines with their numbers: a text, and the object it says, or the reason why it says none."""
    with files.reading(path) as file:
        for number, raw in enumerate(file, 1):
            if survey is not None:
                survey.ended = raw.endswith(b"\n")
            try:
                text = raw.removesuffix(b"\n").decode()
            except UnicodeDecodeError as error:
                yield number, "", f"is no UTF-8 ({error.reason} at byte {error.start + 1})"
                continue
            if text.strip():
                yield number, text, _object(text)


def _object(text: str) -> dict[str, Any] | str:
    if _levels(text) > _MAX_LEVELS:
        return f"is nested more than {_MAX_LEVELS} levels deep"
    try:
        found = json.loads(text.strip())
    except ValueError as error:
        return f"is no JSON ({error})"
    return found if isinstance(found, dict) else f"is no JSON object ({type(found).__name__})"


def _levels(text: str) -> int:
    """Tell how deep brackets are nested, so that no parser meets more than it can take."""
    if text.count("[") + text.count("{") <= _MAX_LEVELS:
        return 0
    deepest = level = 0
    for found in _BRACKETS.finditer(text):
        level += 1 if found[1] else -1 if found[2] else 0
        deepest = max(deepest, level)
    return deepest


def _draft(path: Path, survey: _Survey, skipped: list[Skipped]) -> Draft:
    head = survey.heads.get("metadata")
    line = {} if head is None else head.value
    generation = _generation(path, survey)
    key = _key(path, line, generation)

    def note(field: str, remedy: str) -> None:
        if head is not None and field in line:
            skipped.append(Skipped(head.number, f"{field} {_shown(line[field])}: {remedy}"))

    metadata = _metadata(line)
    if metadata != line.get("metadata", {}):
        note("metadata", "is no object that can be kept, {} instead")
    consolidated = _consolidated(line, survey.messages)
    if consolidated is None:
        note("last_consolidated", f"is no count of these {survey.messages} messages, 0 instead")
    times = {name: moment(line.get(name)) for name in ("created_at", "updated_at")}
    for name, time in times.items():
        if time is None:
            note(name, "is no time, now instead")
    if "key" in line and line["key"] != key:
        note("key", f"is no key, {key!r} from the file's name instead")
    return Draft(
        key=key,
        parts=lambda: _parts(path, survey, STYLES[generation], skipped),
        fields={"metadata": metadata, "title": title_of(metadata)},
        created_at=times["created_at"],
        updated_at=times["updated_at"],
        last_consolidated=consolidated or 0,
        extra={NAME: _kept(path, key, generation, survey, times["updated_at"])},
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
    key = _decoded(path.stem)
    encoded = key is not None and line.get("key", key) == key
    return "g2" if encoded or "last_archived" in line or "provider_state" in survey.heads else "g1"


def _key(path: Path, line: dict[str, Any], generation: str) -> str:
    for key in (line.get("key"), _key_of_name(path.stem, generation)):
        try:
            return checked_key(key)  # type: ignore[arg-type] # what is no text is refused
        except InvalidKey as error:
            reason = error
    raise InvalidFile(path, f"has no key that can be kept, in its metadata or its name: rename it ({reason})")


def _key_of_name(stem: str, generation: str) -> str:
    if generation == "g0":
        return stem.replace("_", ":")
    return _decoded(stem) or stem.replace("_", ":", 1)


def _metadata(line: dict[str, Any]) -> dict[str, Any]:
    found = line.get("metadata")
    return found if isinstance(found, dict) and _is_kept(found) else {}


def title_of(metadata: dict[str, Any]) -> str | None:
    """Give the title that a session's metadata holds, if it can be kept as one."""
    title = metadata.get("title")
    try:
        return encode_text(title, "title") if isinstance(title, str) else None
    except InvalidMessage:
        return None


def _consolidated(line: dict[str, Any], messages: int) -> int | None:
    found = line.get("last_consolidated", 0)
    return found if type(found) is int and 0 <= found <= messages else None


def _kept(path: Path, key: str, generation: str, survey: _Survey, updated_at: datetime | None) -> dict[str, Any]:
    kept: dict[str, Any] = {"key": key, "generation": generation, "stem": _printable(path.stem)}
    for name, head in survey.heads.items():
        exact = STYLES[generation].dumps(head.value) == head.text and _is_kept(head.value)
        kept |= {name: head.value} if exact else {f"{name}_line": head.text}
        if head.after:
            kept[f"{name}_after"] = head.after
    if updated_at is not None:
        kept["updated_at"] = updated_at.isoformat()
    if not survey.ended:
        kept["ended"] = False
    return kept


def _printable(stem: str) -> str:
    return stem.encode("utf-8", "backslashreplace").decode()


def _is_kept(value: Any) -> bool:
    try:
        encode_json({NAME: {"": value}}, "extra")
    except InvalidMessage:
        return False
    return True


def _parts(path: Path, survey: _Survey, style: Style, skipped: list[Skipped]) -> Iterator[Part]:
    found = _messages(path, style, skipped)
    while page := list(islice(found, _PAGE)):
        yield Part(page)
    if files.state(path) != survey.state:
        raise InvalidFile(path, "changed while it was read: stop nanobot, then import again")


def _messages(path: Path, style: Style, skipped: list[Skipped]) -> Iterator[Message]:
    for number, text, line in _lines(path):
        if isinstance(line, str) or line.get("_type") in _HEADS:
            continue
        message, loss = message_from_text(text, line, style)
        if loss is not None:
            skipped.append(Skipped(number, loss))
        elif not known_role(line):
            skipped.append(Skipped(number, f"role {_shown(line.get('role'))} is none of ours: kept as user"))
        yield message


# Out


def write(draft: Draft, folder: Path) -> Path:
    """Write a session as the generation it came from, today's otherwise, and give the file's path.

    A file that is there with the same bytes stays; with other bytes it is `InvalidFile` and stays too.
    """
    found = draft.extra.get(NAME)
    kept = found if isinstance(found, dict) else {}
    generation = str(kept.get("generation"))
    if generation not in STYLES:
        generation = "g2"
    style = STYLES[generation]
    path = folder / file_name(draft.key, generation)
    with files.writing(path) as file:
        separator = b""
        for text in _texts(draft, kept, style):
            file.write(separator + text.encode())
            separator = b"\n"
        file.write(separator if kept.get("ended", True) else b"")
    return path


def _texts(draft: Draft, kept: dict[str, Any], style: Style) -> Iterator[str]:
    heads = [(_place(kept, name), text) for name, text in _heads(draft, kept, style)]
    for written, message in enumerate(_log(draft)):
        while heads and heads[0][0] <= written:
            yield heads.pop(0)[1]
        yield from text_from_message(message, style)
    for _, text in heads:
        yield text


def _log(draft: Draft) -> Iterator[Message]:
    return (message for part in draft.parts() for message in part.messages)


def _place(kept: dict[str, Any], name: Head) -> int:
    place = kept.get(f"{name}_after")
    return place if isinstance(place, int) else 0


def _heads(draft: Draft, kept: dict[str, Any], style: Style) -> list[tuple[Head, str]]:
    heads: list[tuple[Head, str]] = [("metadata", _metadata_text(draft, kept, style))]
    if isinstance(kept.get("provider_state_line"), str):
        heads.append(("provider_state", kept["provider_state_line"]))
    elif isinstance(kept.get("provider_state"), dict):
        heads.append(("provider_state", style.dumps(kept["provider_state"])))
    return sorted(heads, key=lambda head: _place(kept, head[0]))


def _metadata_text(draft: Draft, kept: dict[str, Any], style: Style) -> str:
    """Give the metadata line as it came, but for what has changed in the store since."""
    text = kept.get("metadata_line")
    came = _object(text) if isinstance(text, str) else kept.get("metadata")
    if not isinstance(came, dict):
        came = {}
    line = _brought_up_to_date(draft, came, kept, style)
    if isinstance(text, str) and style.dumps(line) == style.dumps(came):
        return text
    return style.dumps(line)


def _brought_up_to_date(draft: Draft, came: dict[str, Any], kept: dict[str, Any], style: Style) -> dict[str, Any]:
    ours = kept.get("key") == draft.key  # a fork has its forefather's lines, and a life of its own
    line = dict(came) if came else dict.fromkeys(_METADATA)
    line["_type"] = "metadata"
    if "key" in line:
        line["key"] = draft.key
    if not ours or moment(came.get("created_at")) is None:
        line["created_at"] = _stamp(draft.created_at, style)
    if not ours or _changed(draft.updated_at, kept.get("updated_at")):
        line["updated_at"] = _stamp(draft.updated_at, style)
    metadata = metadata_out(draft, came)
    if metadata or "metadata" in line:
        line["metadata"] = metadata
    consolidated = _consolidated_lines(draft, style)
    if consolidated or "last_consolidated" in line:
        line["last_consolidated"] = consolidated
    return line


def metadata_out(draft: Draft, came: dict[str, Any]) -> dict[str, Any]:
    """Give the metadata of the store, and in it the title, where that was changed by itself."""
    metadata = dict(draft.fields.get("metadata") or {})
    title = draft.fields.get("title")
    if title != title_of(_metadata(came)):
        metadata.pop("title", None)
        metadata |= {} if title is None else {"title": title}
    return metadata


def _changed(time: datetime | None, imported: object) -> bool:
    return time is not None and moment(imported) != time


def _stamp(time: datetime | None, style: Style) -> str | None:
    return None if time is None else style.stamp(time)


def _consolidated_lines(draft: Draft, style: Style) -> int:
    """Count the lines that a model no longer sees: those of consolidated messages, and of those before a summary."""
    gone = takewhile(
        lambda place: place[0] < draft.last_consolidated or place[1].seq <= draft.summarized_upto,
        enumerate(_log(draft)),
    )
    return sum(len(lines_from_message(message, style)) for _, message in gone)
