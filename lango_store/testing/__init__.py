"""The store's promises as checks, for whoever wraps, subclasses or replaces it.

`run_store_checks(make_store)` runs them all; `checks()` lists them, and each runs by itself.
`lango_store.testing.fixtures` is a plugin for pytest, with stores on temporary databases; nothing else needs pytest.
"""

from lango_store.testing import concurrency, expiry, messages, sessions, turns, values, windows
from lango_store.testing.checks import (
    Check,
    MakeAsyncStore,
    MakeStore,
    checks,
    run_async_store_checks,
    run_store_checks,
)
from lango_store.testing.clock import Clock

__all__ = [
    "Check",
    "Clock",
    "MakeAsyncStore",
    "MakeStore",
    "checks",
    "concurrency",
    "expiry",
    "messages",
    "run_async_store_checks",
    "run_store_checks",
    "sessions",
    "turns",
    "values",
    "windows",
]
