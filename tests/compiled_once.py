"""Statements are compiled once in a run of the tests, not again by the engine of every test: a fifth of its work.

SQLAlchemy keeps what it compiled by engine and by dialect, as an application has one of each. Here all dialects that
are alike are one to it, and a statement that is kept without something that it depends on is found as there.
"""

from __future__ import annotations

from collections.abc import Hashable
from types import FunctionType, NoneType
from typing import Any, Final, cast

import sqlalchemy as sa
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.util import LRUCache

_TELLING: Final = (NoneType, bool, int, str, tuple, FunctionType)
"""The types of what two dialects of a class may differ in: settings, versions, writers of JSON."""

_firsts: dict[Hashable, sa.Dialect] = {}
_compiled: LRUCache[Any, Any] = LRUCache(2_000)
_compile = ClauseElement._compile_w_cache


def _shared(statement: ClauseElement, dialect: sa.Dialect, *, compiled_cache: Any, **options: Any) -> Any:
    if compiled_cache is not None:  # what an engine must not keep is not kept here either
        state = frozenset(each for each in vars(dialect).items() if isinstance(each[1], _TELLING))
        dialect = _firsts.setdefault((type(dialect), state), dialect)
        compiled_cache = _compiled
    return _compile(statement, dialect, compiled_cache=compiled_cache, **options)


def install() -> None:
    """Share in this process from now on."""
    ClauseElement._compile_w_cache = cast(Any, _shared)  # type: ignore[method-assign]
