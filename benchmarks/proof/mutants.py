"""Faults of lango_store, planted into a worker process: the checker has to find each of them."""

from __future__ import annotations

from collections.abc import Callable

MUTANTS: dict[str, Callable[[], None]] = {}
