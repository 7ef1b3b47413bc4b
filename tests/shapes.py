"""Whether a statement names the session whose rows it is about, told from its text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from lango_store.tables import Base

KEYS: Final = {table.name: next(iter(table.primary_key.columns)).name for table in Base.metadata.sorted_tables}
"""The column that says whose a row is, by table."""

_TABLE: Final = "|".join(KEYS)
_LITERAL: Final = re.compile(r"'(?:[^']|'')*'")
_QUERY: Final = re.compile(r"\(\s*(?:SELECT|WITH|INSERT|UPDATE|DELETE)\b")
_READ: Final = re.compile(rf"\b(?:FROM|JOIN|UPDATE|,)\s+(?:\w+\.)?({_TABLE})\b(?!\s*\.)(?:\s+AS\s+(\w+))?")
_WRITTEN: Final = re.compile(rf"\bINSERT INTO ({_TABLE}) \(([^)]*)\)")
_COLUMN: Final = r"(\w+)\.(\w+)"
_EQUAL: Final = re.compile(
    rf"\b{_COLUMN} = (?:{_COLUMN}\b|(%\(|ANY \(|\())|(%\(\w+\)\w(?:::\S+)?(?: COLLATE \"C\")?) = {_COLUMN}"
)


@dataclass(eq=False)
class _Query:
    """A query in a statement, without those that stand in it."""

    text: str
    around: _Query | None
    tables: dict[str, str] = field(default_factory=dict)
    """What it reads, by the name that it has in it."""


def unkeyed(statement: str) -> set[str]:
    """Return the tables of which a statement may touch rows of any session.

    A table is all right whose key is compared with a value, with something that is not a table of ours, or with a
    table that is all right. What an OR does to that is not looked at.
    """
    queries = list(_queries(_LITERAL.sub("''", statement), None))
    fixed: set[tuple[_Query, str]] = set()
    beside: list[set[tuple[_Query, str]]] = []
    for query in queries:
        for found in _EQUAL.finditer(query.text):
            sides = [
                _whose(query, found[1], found[2]),
                _whose(query, found[3], found[4]),
                _whose(query, found[7], found[8]),
            ]
            keys = {side for side in sides if side is not None}
            if len(keys) == 1 and not (
                found[1] and found[3] and _is_ours(query, found[1]) and _is_ours(query, found[3])
            ):
                fixed |= keys
            elif len(keys) == 2:
                beside.append(keys)
    for _ in beside:  # each round reaches one further
        for keys in beside:
            if keys & fixed:
                fixed |= keys
    left = {query.tables[name] for query in queries for name in query.tables if (query, name) not in fixed}
    return left | {table for table, columns in _WRITTEN.findall(statement) if KEYS[table] not in columns.split(", ")}


def _queries(text: str, around: _Query | None) -> Iterator[_Query]:
    query = _Query(text, around)
    inner: list[str] = []
    while start := _QUERY.search(query.text):
        end = _end(query.text, start.start())
        inner.append(query.text[start.start() + 1 : end])
        query.text = f"{query.text[: start.start()]}( ){query.text[end + 1 :]}"
    query.tables = {name or table: table for table, name in _READ.findall(query.text)}
    yield query
    for each in inner:
        yield from _queries(each, query)


def _end(text: str, start: int) -> int:
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    raise ValueError(f"a parenthesis is not closed: {text[start:]}")


def _whose(query: _Query, name: str | None, column: str | None) -> tuple[_Query, str] | None:
    """Return the table whose key a column is, None for another column."""
    if name is None:
        return None
    at: _Query | None = query
    while at is not None:
        if name in at.tables:
            return (at, name) if KEYS[at.tables[name]] == column else None
        at = at.around
    return None


def _is_ours(query: _Query, name: str) -> bool:
    at: _Query | None = query
    while at is not None:
        if name in at.tables:
            return True
        at = at.around
    return False
