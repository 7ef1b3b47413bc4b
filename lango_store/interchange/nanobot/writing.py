"""Writing of nanobot files: an imported session is written back unchanged, except for later changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from lango_store.interchange import files
from lango_store.interchange.draft import Draft
from lango_store.interchange.fidelity import mapping
from lango_store.interchange.moments import moment
from lango_store.interchange.nanobot.heads import OFFSETS, Head, metadata_of, offset_of, read_object, title_of
from lango_store.interchange.nanobot.lines import STYLES, Style, lines_from_message, text_from_message
from lango_store.interchange.nanobot.names import NAME, file_name

_METADATA: Final = ("_type", "key", "created_at", "updated_at", "metadata", "last_consolidated")


def write(draft: Draft, folder: Path, *, replace: bool = False) -> Path:
    """Write a session as the generation it came from, today's otherwise, and return the file's path.

    A file that is there with the same bytes stays; with other bytes it is `InvalidFile` and stays too.
    """
    raw = mapping(draft.extra.get(NAME))
    generation = str(raw.get("generation"))
    if generation not in STYLES:
        generation = "g2"
    style = STYLES[generation]
    path = folder / file_name(draft.key, generation)
    with files.writing(path, replace=replace) as file:
        separator = b""
        for text in _texts(draft, raw, style):
            file.write(separator)
            file.write(text.encode())
            separator = b"\n"
        file.write(separator if raw.get("ended", True) else b"")
    return path


def _texts(draft: Draft, raw: dict[str, Any], style: Style) -> Iterator[str]:
    heads = [(_place(raw, name), text) for name, text in _heads(draft, raw, style)]
    for written, message in enumerate(draft.messages):
        while heads and heads[0][0] <= written:
            yield heads.pop(0)[1]
        yield from text_from_message(message, style)
    for _, text in heads:
        yield text


def _place(raw: dict[str, Any], name: Head) -> int:
    place = raw.get(f"{name}_after")
    return place if isinstance(place, int) else 0


def _heads(draft: Draft, raw: dict[str, Any], style: Style) -> list[tuple[Head, str]]:
    heads: list[tuple[Head, str]] = [("metadata", _metadata_text(draft, raw, style))]
    if isinstance(raw.get("provider_state_line"), str):
        heads.append(("provider_state", raw["provider_state_line"]))
    elif isinstance(raw.get("provider_state"), dict):
        heads.append(("provider_state", style.dumps(raw["provider_state"])))
    return sorted(heads, key=lambda head: _place(raw, head[0]))


def _metadata_text(draft: Draft, raw: dict[str, Any], style: Style) -> str:
    """Return the imported metadata line with the changes that were made in the store."""
    text = raw.get("metadata_line")
    came = mapping(read_object(text) if isinstance(text, str) else raw.get("metadata"))
    line = _brought_up_to_date(draft, came, raw, style)
    if isinstance(text, str) and style.dumps(line) == style.dumps(came):
        return text
    return style.dumps(line)


def _brought_up_to_date(draft: Draft, came: dict[str, Any], raw: dict[str, Any], style: Style) -> dict[str, Any]:
    line = dict(came) if came else dict.fromkeys(_METADATA)
    line["_type"] = "metadata"
    if "key" in line:
        line["key"] = draft.key
    if moment(came.get("created_at"), local=True) is None:
        line["created_at"] = _stamp(draft.created_at, style)
    if _changed(draft.updated_at, raw.get("updated_at")):
        line["updated_at"] = _stamp(draft.updated_at, style)
    metadata = metadata_out(draft.fields, came)
    if metadata != metadata_of(came) or not isinstance(line.get("metadata", {}), dict):
        line["metadata"] = metadata
    consolidated = _consolidated_lines(draft, style)
    if offset_of(line) != consolidated:
        line |= {name: consolidated for name in OFFSETS if name in line}
        if consolidated:
            line.setdefault("last_consolidated", consolidated)  # which every nanobot reads
    return line


def metadata_out(fields: Mapping[str, Any], came: dict[str, Any]) -> dict[str, Any]:
    """Return the stored metadata, with the title if it was changed separately."""
    metadata = dict(fields.get("metadata") or {})
    title = fields.get("title")
    if title != title_of(metadata_of(came)):
        metadata.pop("title", None)
        metadata |= {} if title is None else {"title": title}
    return metadata


def _changed(time: datetime | None, imported: object) -> bool:
    return time is not None and moment(imported, local=True) != time


def _stamp(time: datetime | None, style: Style) -> str | None:
    return None if time is None else style.stamp(time)


def _consolidated_lines(draft: Draft, style: Style) -> int:
    """Count the lines that a model no longer sees: those of consolidated messages, and of those before a summary."""
    gone = takewhile(
        lambda place: place[0] < draft.last_consolidated or place[1].seq <= draft.summarized_upto,
        enumerate(draft.messages),
    )
    return sum(len(lines_from_message(message, style)) for _, message in gone)
