"""What the adapters for frameworks share: keys of several ids, and whose store it is."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lango_store import AsyncStore, InvalidKey, LangoStoreError, Store
from lango_store._rows.encoding import checked_key
from lango_store.integrations.adapter import Adapter
from lango_store.integrations.keys import joined_key, split_key

any_text = st.text(st.characters(), max_size=20)
awkward = st.text(st.sampled_from(":%/\0\ud800\udfffA3é\U0001f600"), max_size=6)
parts = st.lists(any_text | awkward, min_size=2, max_size=3)


def key_of(texts: list[str]) -> str:
    return joined_key(**{f"part{number}": text for number, text in enumerate(texts)})


@given(parts, parts)
def test_keys_of_different_ids_differ(one: list[str], other: list[str]) -> None:
    assert (key_of(one) == key_of(other)) is (one == other)


@given(parts)
def test_a_key_is_one_that_the_store_takes_and_gives_its_ids_back(texts: list[str]) -> None:
    key = key_of(texts)
    assert checked_key(key) == key
    assert split_key(key) == texts


def test_a_prefix_stands_before_the_ids_as_it_is() -> None:
    key = joined_key("adk/", app="shop", user="ann:1")
    assert key == "adk/shop:ann%3A1"
    assert split_key(key, "adk/") == ["shop", "ann:1"]
    assert unquote(key) == "adk/shop:ann:1"
    with pytest.raises(ValueError, match="begin"):
        split_key("shop:ann", "adk/")


def test_a_key_that_is_too_long_names_the_longest_part() -> None:
    with pytest.raises(InvalidKey, match="user alone 600"):
        joined_key(app="shop", user=":" * 200, session="1")
    with pytest.raises(InvalidKey, match="session alone 500"):
        joined_key(app="a" * 20, user="u", session="s" * 500)
    assert len(joined_key(app="a", user="u" * 510)) == 512


def test_an_adapter_closes_what_it_made_and_leaves_open_what_it_was_given(url: str) -> None:
    async def main() -> None:
        async with Adapter(url, migrate=True) as adapter:
            made = adapter.store
            made.create("k")
        with pytest.raises(LangoStoreError, match="closed"):
            made.info("k")

        with Store(url) as given_store:
            async with Adapter(given_store) as adapter:
                assert adapter.store is given_store
            assert given_store.exists("k")

        async with AsyncStore(url) as awaited:
            async with Adapter(awaited) as adapter:
                assert adapter.store is awaited.store
            assert await awaited.exists("k")

    asyncio.run(main())


def test_options_are_for_what_an_adapter_makes(url: str) -> None:
    with Store(url) as store, pytest.raises(TypeError, match="migrate"):
        Adapter(store, migrate=True)


def test_an_adapter_understands_the_urls_of_asynchronous_drivers(url: str) -> None:
    theirs = url.replace("sqlite:", "sqlite+aiosqlite:").replace("postgresql+psycopg:", "postgresql+asyncpg:")

    async def main() -> None:
        async with Adapter(theirs) as adapter:
            adapter.store.create("k")
            assert adapter.store.exists("k")

    asyncio.run(main())


def test_an_adapter_serves_several_event_loops(url: str) -> None:
    adapter = Adapter(url)

    async def count() -> int:
        return await adapter._awaited.count()

    assert [asyncio.run(count()) for _ in range(2)] == [0, 0]
    asyncio.run(adapter.close())
