"""Queries of a search index."""

from typing import Any

from lango_store import Store, schema


def found(store: Store, words: str, **which: Any) -> list[tuple[str, int]]:
    """Return the positions of up to 1,000 hits, sorted."""
    return sorted((hit.key, hit.seq) for hit in store.search(words, limit=1_000, **which).items)


def waiting(store: Store) -> int:
    return schema.search_status(store.engine).waiting


def findings(store: Store) -> list[str]:
    return [each.detail for each in store.maintenance.examine() if each.name == "search index"]
