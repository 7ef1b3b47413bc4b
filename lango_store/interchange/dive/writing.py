"""Writing of Dive's session files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lango_store._values.model import Message
from lango_store.errors import InvalidKey
from lango_store.interchange.dive.fields import event_of, header_of, raw_of
from lango_store.interchange.dive.names import NAME
from lango_store.interchange.draft import Draft, Part
from lango_store.interchange.fidelity import mapping, restored
from lango_store.interchange.files import writing
from lango_store.interchange.moments import go_text, nanoseconds
from lango_store.interchange.source import MAX_NAME

_ESCAPES: Final = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})


def write(draft: Draft, folder: Path, *, replace: bool = False) -> Path:
    """Write a session to the file that Dive opens under its id; `InvalidKey` if that is too long for a file's name.

    Dive shows a model the last compaction and what follows. Messages that were appended
    while the summary was written follow it, so the compaction is written before them.
    """
    header = header_of(draft, mapping(draft.extra.get(NAME)))
    path = folder / f"{header['id']}.jsonl"
    if len(path.name.encode()) > MAX_NAME:
        raise InvalidKey(
            f"session key {draft.key!r} is too long for a file's name, which Dive's ids are: fork it to another key"
        )
    with writing(path, replace=replace) as file:
        for line in _lines(draft, header):
            file.write(_bytes_of(line))
            file.write(b"\n")
    return path


def _bytes_of(line: dict[str, Any]) -> bytes:
    text = json.dumps(line, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # A lone surrogate has no UTF-8; its JSON escape is what backslashreplace writes.
    text = text.translate(_ESCAPES)
    return text.encode("utf-8", "backslashreplace")


def _lines(draft: Draft, header: dict[str, Any]) -> Iterator[dict[str, Any]]:
    raw = mapping(draft.extra.get(NAME))
    yield {"line_type": "header", "data": header, **mapping(raw.get("beside"))}
    yield from raw.get("lines") or []
    number = 0
    for part in _in_dives_order(draft):
        for event in _events(part):
            number += 1
            raw = raw_of(event)
            # Dive's own ids end in a number without the s.
            made_up = {"id": f"evt-{nanoseconds(go_text(event.created_at))}-s{number}"}
            data = restored(made_up | event_of(event), raw)
            yield {"line_type": "event", "data": data, **mapping(raw.get("beside"))}
            yield from raw.get("lines") or []


def _events(part: Part) -> Iterator[Part]:
    """Yield a turn or a compaction unchanged, and each other message as a separate event."""
    if part.kind is not None:
        yield part
        return
    for message in part.messages:
        yield Part([message], created_at=message.created_at or part.created_at)


def _in_dives_order(draft: Draft) -> Iterator[Part]:
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


def _early(draft: Draft) -> list[tuple[int, Part]]:
    """Return the compactions that messages were appended during, each with the seq that it has to follow."""
    found = []
    last, floor = 0, 0
    for part in draft.parts:
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
