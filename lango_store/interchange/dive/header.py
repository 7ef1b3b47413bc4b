"""The header line of a Dive file: the session's fields, and what our columns cannot give back."""

from __future__ import annotations

from typing import Any

from lango_store.interchange.dive.names import id_of, key_of
from lango_store.interchange.draft import Draft
from lango_store.interchange.fidelity import mapping, same, storable_text
from lango_store.interchange.moments import go_text, moment


def columns(raw: dict[str, Any]) -> dict[str, Any]:
    """Return what a header, as it came, says of the columns that we have."""
    header = mapping(raw.get("header"))
    return {
        "id": _as_key(header.get("id")),
        "title": storable_text(header.get("title")),
        "created_at": moment(header.get("created_at")),
        "updated_at": moment(raw.get("updated_at", header.get("updated_at"))),
        "metadata": mapping(header.get("metadata")),
        "forked_from": _as_key(storable_text(header.get("forked_from"))),
    }


def _as_key(id: Any) -> Any:
    return key_of(id) if isinstance(id, str) else id


def header_of(draft: Draft, raw: dict[str, Any]) -> dict[str, Any]:
    """Return the header as it came, with what has changed since."""
    header = dict(mapping(raw.get("header")))
    is_new = not header
    came = columns(raw)
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


def beside(line: dict[str, Any]) -> dict[str, Any]:
    """Return what a line holds beside its type and its data."""
    found = {name: value for name, value in line.items() if name not in ("line_type", "data")}
    return {"beside": found} if found else {}
