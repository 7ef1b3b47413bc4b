"""Searches, and what they find in four messages: for the tests of search."""

from __future__ import annotations

from typing import Any

from lango_store import Store


def found(store: Store, words: str, **which: Any) -> list[tuple[str, int]]:
    """Which messages are found, in the order of their places."""
    return sorted((hit.key, hit.seq) for hit in store.search(words, **which).items)


ASKED = {
    "oslo": [1, 2, 3],
    "OSLO weather": [1, 3],
    '"weather in oslo"': [1],
    '"oslo in weather"': [],
    "oslo -weather": [2],
    'oslo -"weather in"': [2, 3],
    "wea*": [1, 3, 4],
    '"in os"*': [1, 3],
    "refund*": [2],
    "-oslo": [],
    "nowhere": [],
    "oslo nowhere": [],
    "get_weather": [],
    "!?": [],
    "oslo !?": [1, 2, 3],
    "4711": [2],
    "42": [4],
    '"': [],
    '""*': [],
    "a" * 5_000: [],
    "a b " * 2_000: [],
    "-a " * 500: [],
    "NEAR(oslo weather)": [],
    "said:oslo": [],
    "oslo OR bergen": [],
    "oslo {": [1, 2, 3],
    "oslo \\ & | ! <-> :* ^": [1, 2, 3],
}
