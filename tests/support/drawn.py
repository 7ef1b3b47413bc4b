"""What a machine draws of sessions: keys, ids, messages, places in a log, revisions, usages and values."""

from __future__ import annotations

from hypothesis import strategies as st

CALLS = ("c1", "c2")

keys = st.sampled_from("aaab")
ids = st.one_of(st.none(), st.sampled_from(["i1", "i2", "i3", "i4"]))
tokens = st.one_of(st.none(), st.integers(0, 9))
kinds = st.sampled_from(["user", "assistant", "system", "call", "result", "outputs", "bare result", "record"])
one_message = st.tuples(kinds, ids, tokens, st.sampled_from(CALLS))
batches = st.lists(one_message, max_size=3)
drawn_places = st.one_of(st.none(), st.none(), st.just(0), st.just(-1), st.just(1))
"""Nothing, right, behind or ahead: what to add to the session's last seq."""
revisions = st.sampled_from([None, None, None, 0, 1])
"""Nothing, right or ahead: what to add to the session's revision."""
depths = st.integers(0, 5)
usages = st.fixed_dictionaries(
    {}, optional={"input": st.integers(0, 9), "details": st.fixed_dictionaries({"cached": st.integers(0, 9)})}
)
names = st.sampled_from(["a", "b", "c"])
values_by_name = st.dictionaries(names, st.sampled_from([None, 1, "\0", {"x": [1.5]}]), max_size=2)
meanwhiles = st.lists(st.sampled_from(["append", "append", "turn", "empty turn"]), max_size=2)
disturbances = st.sampled_from(["pop", "edit", "truncate", "clear", "compact", "delete and create"])
