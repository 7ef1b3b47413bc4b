"""Keys of several ids, and the options of adapters."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lango_store import Store
from lango_store._rows.encoding import checked_key
from lango_store.integrations.adapter import Adapter
from lango_store.integrations.fields import joined_key, level_id, level_key, split_key

any_text = st.text(st.characters(), max_size=20)
awkward = st.text(st.sampled_from(":%/\0\ud800\udfffA3é\U0001f600"), max_size=6)
parts = st.lists(any_text | awkward, min_size=2, max_size=3)


@given(parts, parts)
def test_keys_joined_from_different_ids_differ(one: list[str], other: list[str]) -> None:
    assert (joined_key(*one) == joined_key(*other)) is (one == other)


@given(parts)
def test_joined_key_is_valid_and_can_be_split_into_the_ids(texts: list[str]) -> None:
    key = joined_key(*texts)
    assert checked_key(key) == key
    assert split_key(key) == texts


def test_joined_key_starts_with_the_unescaped_prefix() -> None:
    key = joined_key("shop", "ann:1", prefix="adk/")
    assert key == "adk/shop:ann%3A1"
    assert split_key(key, "adk/") == ["shop", "ann:1"]
    assert unquote(key) == "adk/shop:ann:1"


@given(any_text | awkward, st.sampled_from(["", "acme/", "50%/"]))
def test_level_key_escapes_slashes_and_level_id_restores_the_id(id: str, prefix: str) -> None:
    key = level_key(id, prefix)
    assert "/" not in key[len(prefix) :]
    assert level_id(key, prefix) == id


def test_level_key_keeps_ids_without_slash_and_level_id_returns_none_for_keys_of_another_form() -> None:
    assert level_key("telegram:1 é") == "telegram:1 é"
    assert level_key("a/b%", "acme/") == "acme/a%2Fb%25"
    assert [level_id(key, "acme/") for key in ("acme/a/b", "other", "acme/50%", "acme/%41")] == [None] * 4


def test_adapter_refuses_options_for_an_existing_store(url: str) -> None:
    with Store(url) as store, pytest.raises(TypeError, match="migrate"):
        Adapter(store, migrate=True)
