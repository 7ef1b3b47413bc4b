"""What our fields cannot give back of a JSON object: kept beside them on the way in, put back on the way out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are written alike; `==` takes true for 1 and 1 for 1.0."""
    return one is other or json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def difference(original: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Say what turns the object that we would write into the original: `fields` to set, names that are `absent`."""
    fields = {name: value for name, value in original.items() if name not in written or not same(value, written[name])}
    absent = [name for name in written if name not in original]
    return ({"fields": fields} if fields else {}) | ({"absent": absent} if absent else {})


def restored(written: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """Give the original back, from what we would write and the difference that was kept."""
    absent = kept.get("absent") or ()
    return {name: value for name, value in {**written, **mapping(kept.get("fields"))}.items() if name not in absent}


def mapping(value: Any) -> dict[str, Any]:
    """Give a JSON object, an empty one for any other value."""
    return value if isinstance(value, dict) else {}
