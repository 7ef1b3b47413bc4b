"""Strategies for any JSON value, and comparisons of JSON values."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st


def json_values(texts: st.SearchStrategy[str] | None = None, *, max_leaves: int = 6) -> st.SearchStrategy[Any]:
    """Return a strategy for JSON values whose texts and names are drawn from `texts`."""
    texts = st.text() if texts is None else texts
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=max_leaves,
    )


def typed_repr(value: Any) -> str:
    """Return a text that, unlike ==, distinguishes 1, 1.0 and True, and the order of keys."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{name!r}:{typed_repr(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(typed_repr, value)) + "]"
    return f"{type(value).__name__}:{value!r}" if not isinstance(value, int) else f"{type(value).__name__}:{value:x}"


def has_surrogate_pair(value: Any) -> bool:
    """Return True if a text holds a surrogate pair as two characters, which a store refuses."""
    text = json.dumps(value, ensure_ascii=False)
    return any("\ud800" <= a <= "\udbff" and "\udc00" <= b <= "\udfff" for a, b in pairwise(text))
