"""Trigrams as entries: any three characters that stand beside each other, for languages without spaces."""

from __future__ import annotations

import functools
import operator
import re
from typing import Any, Final

import sqlalchemy as sa

from lango_store.dialect.entries import GIVEN, PARTS_OF_GIVEN, SIGNATURE, WEIGHTS, Columns, Entries
from lango_store.dialect.search import PARTS, TRIGRAM
from lango_store.words import Term, Terms

_SHORTEST: Final = 3
_OWN_CHARACTERS: Final = 60


class Trigrams(Entries):
    """The trigrams of pg_trgm."""

    name = TRIGRAM
    type = "text"

    def refuse(self, connection: sa.Connection) -> None:
        refused = f"configuration={TRIGRAM!r} needs the extension pg_trgm"
        if (schema := self._schema(connection)) is None:
            query = "SELECT 1 FROM pg_available_extensions WHERE name = 'pg_trgm'"
            if connection.exec_driver_sql(query).first() is None:
                raise ValueError(
                    f"{refused}, which this server does not have: install its contrib package "
                    "(postgresql-contrib), then run `CREATE EXTENSION pg_trgm` in this database"
                )
            raise ValueError(f"{refused}: run `CREATE EXTENSION pg_trgm` in this database")
        if not connection.exec_driver_sql(f"SELECT cardinality({schema}.show_trgm('漢字仮名'))").scalar_one():
            raise ValueError(
                f"configuration={TRIGRAM!r}: the locale of this database knows no letters but those of ASCII, and "
                "pg_trgm none either: make the database with another one, such as C.UTF-8"
            )

    @staticmethod
    def _schema(connection: sa.Connection) -> str | None:
        query = "SELECT quote_ident(extnamespace::regnamespace::text) FROM pg_extension WHERE extname = 'pg_trgm'"
        found: str | None = connection.exec_driver_sql(query).scalar()
        return found

    def function(self, connection: sa.Connection) -> str:
        return f"""
        CREATE FUNCTION lango_search_entry({SIGNATURE}) RETURNS text LANGUAGE plpgsql IMMUTABLE COST 500 AS $$
        BEGIN
          RETURN (SELECT concat_ws(chr(10), {", ".join(PARTS)}) FROM {PARTS_OF_GIVEN});
        END $$
        """

    def operator_class(self, connection: sa.Connection) -> str:
        return f"{self._schema(connection)}.gin_trgm_ops"

    def proposed(self, entry: sa.ColumnElement[Any], terms: Terms) -> sa.ColumnElement[bool]:
        return sa.and_(sa.false() if not _long(terms.wanted) else sa.true(), *_each(entry, terms.wanted))

    def are_proposed_exactly(self, terms: Terms) -> bool:
        return not _long(terms.unwanted)

    def matches(self, entry: sa.ColumnElement[Any], terms: Terms) -> sa.ColumnElement[bool]:
        unwanted = (sa.not_(each) for each in _each(entry, terms.unwanted))
        return sa.and_(self.proposed(entry, terms), *unwanted)

    def rank(self, message: Columns, terms: Terms) -> sa.ColumnElement[float]:
        parts = sa.func.lango_search_parts(*(message.c[name] for name in GIVEN)).table_valued(*PARTS, name="part")
        counted = [
            sa.case((each, weight), else_=0.0)
            for name, weight in zip(PARTS, WEIGHTS, strict=True)
            for each in _each(parts.c[name], terms.wanted)
        ]
        total = functools.reduce(operator.add, counted, sa.literal(0.0))
        return sa.select(total).select_from(parts).scalar_subquery()

    def marked(self, text: sa.ColumnElement[str], terms: Terms, marks: tuple[str, str]) -> list[sa.ColumnElement[str]]:
        pattern = "|".join(re.sub(r"([^\w\s])", r"\\\1", term.words) for term in _long(terms.wanted))
        return [text, sa.func.regexp_replace(text, pattern, rf"{marks[0]}\&{marks[1]}", "gi")]

    def finds_itself(self, indexed: str, entry: str) -> str:
        begun = f"left({entry}, {_OWN_CHARACTERS})"
        return rf"{indexed} ILIKE '%' || replace(replace(replace({begun}, '\', '\\'), '%', '\%'), '_', '\_') || '%'"

    def says_something(self, entry: str) -> str:
        return f"length({entry}) >= {_SHORTEST}"


def _long(terms: Any) -> list[Term]:
    """Return the terms that have a trigram; the others say nothing, on SQLite too."""
    return [term for term in terms if len(term.words) >= _SHORTEST]


def _each(text: sa.ColumnElement[Any], terms: Any) -> list[sa.ColumnElement[bool]]:
    escaped = (re.sub(r"([\\%_])", r"\\\1", term.words) for term in _long(terms))
    return [text.ilike(f"%{words}%") for words in escaped]
