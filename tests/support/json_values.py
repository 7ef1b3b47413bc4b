"""Strategies for any JSON value."""

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
