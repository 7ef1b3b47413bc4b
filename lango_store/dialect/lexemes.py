"""Lexemes as entries: the words of a message as a text search configuration reads them, with places and weights."""

from __future__ import annotations

import functools
import string
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from lango_store.dialect.entries import PARTS_OF_GIVEN, SIGNATURE, Columns, Entries, entry_of
from lango_store.words import Term, Terms

_LONGEST_PART: Final = 100_000
_LONGEST_PART_OF_MANY: Final = 18_000

# A word is letters and digits, as it is for SQLite: with these between them PostgreSQL's parser would see hosts, paths,
# compounds and signed numbers. A regular expression, since translate() takes several times as long.
_JOINING: Final = "[-/.@&<+_]"
_AS_SPACES: Final = str.maketrans(string.punctuation, " " * len(string.punctuation))

_OWN_LEXEMES: Final = 20


def _weighed(configuration: str, text: str, weight: str) -> str:
    return f"setweight(to_tsvector({configuration}, regexp_replace({text}, '{_JOINING}', ' ', 'g')), '{weight}')"


class Lexemes(Entries):
    """The lexemes of one configuration."""

    type = "tsvector"

    def __init__(self, configuration: str) -> None:
        self.name = configuration
        self._regconfig = sa.cast(configuration, postgresql.REGCONFIG)

    def refuse(self, connection: sa.Connection) -> None:
        known = connection.exec_driver_sql(
            "SELECT cfgname::text FROM pg_ts_config WHERE pg_ts_config_is_visible(oid) "
            "ORDER BY cfgname = 'simple' DESC, 1"
        )
        if self.name not in (names := known.scalars().all()):
            raise ValueError(f"configuration={self.name!r}: this database has {', '.join(names)}, and trigram")

    def function(self, connection: sa.Connection) -> str:
        # With its schema: the function is called with a search_path of its own.
        query = (
            "SELECT quote_literal(format('%I.%I', cfgnamespace::regnamespace::text, cfgname)) || '::regconfig' "
            "FROM pg_ts_config WHERE cfgname = :name AND pg_ts_config_is_visible(oid)"
        )
        found = connection.execute(sa.text(query.replace("::", r"\:\:")), {"name": self.name}).scalar_one()
        # A tsvector has room for 1 MB, and a word takes at most about twice its place in the text.
        return f"""
        CREATE FUNCTION lango_search_entry({SIGNATURE}) RETURNS tsvector LANGUAGE plpgsql IMMUTABLE COST 500 AS $$
        DECLARE
          said text;
          blocks text;
          tools text;
          outputs text;
          entry tsvector;
          bytes bigint;
          longest integer;
        BEGIN
          IF given IS NULL AND given_calls IS NULL AND answers IS NULL AND said_by NOT IN ('tool', 'function') THEN
            said := whole;  -- of most messages: to call a function for it would take as long as all the rest
            bytes := octet_length(whole);
          ELSE
            SELECT * INTO said, blocks, tools, outputs FROM {PARTS_OF_GIVEN};
            bytes := octet_length(concat(said, blocks, tools, outputs));
          END IF;
          IF bytes > {_LONGEST_PART} THEN
            longest := CASE WHEN bytes > 300000 THEN {_LONGEST_PART_OF_MANY} ELSE {_LONGEST_PART} END;
            said := left(said, longest);
            blocks := left(blocks, longest);
            tools := left(tools, longest);
            outputs := left(outputs, longest);
          END IF;
          entry := {_weighed(found, "coalesce(said, '')", "A")};
          IF blocks <> '' THEN
            entry := entry || {_weighed(found, "blocks", "B")};
          END IF;
          IF tools <> '' THEN
            entry := entry || {_weighed(found, "tools", "C")};
          END IF;
          IF outputs <> '' THEN
            entry := entry || {_weighed(found, "outputs", "D")};
          END IF;
          RETURN entry;
        END $$
        """

    def operator_class(self, connection: sa.Connection) -> str:
        return ""

    def proposed(self, entry: sa.ColumnElement[Any], terms: Terms) -> sa.ColumnElement[bool]:
        # The index knows no places: of a phrase it is asked for the words, and not for those that are unwanted in it.
        wanted = functools.reduce(_and, (self._all_of(term) for term in terms.wanted))
        unwanted = (term for term in terms.unwanted if _is_word(term))
        return _matches(entry, functools.reduce(_and_not, map(self._phrase, unwanted), wanted))

    def are_proposed_exactly(self, terms: Terms) -> bool:
        return all(map(_is_word, (*terms.wanted, *terms.unwanted)))

    def matches(self, entry: sa.ColumnElement[Any], terms: Terms) -> sa.ColumnElement[bool]:
        wanted = self._wanted(terms)
        says_something = sa.func.numnode(wanted) > 0  # of words that a language leaves out, nothing is left
        query = functools.reduce(_and_not, map(self._phrase, terms.unwanted), wanted)
        return sa.and_(_matches(entry, query), says_something)

    def rank(self, message: Columns, terms: Terms) -> sa.ColumnElement[float]:
        return sa.func.ts_rank(entry_of(message), self._wanted(terms), type_=sa.Float())

    def marked(self, text: sa.ColumnElement[str], terms: Terms, marks: tuple[str, str]) -> list[sa.ColumnElement[str]]:
        begun = sa.func.left(text, _LONGEST_PART)
        plain = sa.func.regexp_replace(begun, _JOINING, " ", "g")
        options = f"HighlightAll=true, StartSel={marks[0]}, StopSel={marks[1]}"
        return [begun, sa.func.ts_headline(self._regconfig, plain, self._wanted(terms), options)]

    def finds_itself(self, indexed: str, entry: str) -> str:
        quoted = r"'''' || replace(replace(lexeme, '\', '\\'), '''', '''''') || ''''"
        own = f"SELECT lexeme FROM unnest({entry}) LIMIT {_OWN_LEXEMES}"
        return f"{indexed} @@ (SELECT string_agg({quoted}, ' & ') FROM ({own}) own)::tsquery"

    def says_something(self, entry: str) -> str:
        return f"{entry} <> ''"

    def _wanted(self, terms: Terms) -> sa.ColumnElement[Any]:
        return functools.reduce(_and, map(self._phrase, terms.wanted))

    def _phrase(self, term: Term) -> sa.ColumnElement[Any]:
        """Write a term as a tsquery."""
        return self._query(term, sa.func.phraseto_tsquery, sa.func.tsquery_phrase)

    def _all_of(self, term: Term) -> sa.ColumnElement[Any]:
        """Write a term as a tsquery of its words, wherever they are."""
        return self._phrase(term) if _is_word(term) else self._query(term, sa.func.plainto_tsquery, sa.func.tsquery_and)

    def _query(self, term: Term, written: Any, joined: Any) -> sa.ColumnElement[Any]:
        words = _words(term)
        whole, begun = (words[:-1], words[-1]) if term.prefix else (words, None)
        query: sa.ColumnElement[Any] = written(self._regconfig, " ".join(whole), type_=postgresql.TSQUERY)
        if begun is None:
            return query
        prefix = sa.func.to_tsquery(self._regconfig, f"'{begun}':*", type_=postgresql.TSQUERY)
        both: sa.ColumnElement[Any] = joined(query, prefix, type_=postgresql.TSQUERY)
        return both if whole else prefix


def _words(term: Term) -> list[str]:
    return term.words.translate(_AS_SPACES).split()


def _is_word(term: Term) -> bool:
    return len(_words(term)) == 1


def _matches(entry: sa.ColumnElement[Any], query: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    return entry.op("@@", is_comparison=True)(query)


def _and(one: sa.ColumnElement[Any], other: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.func.tsquery_and(one, other, type_=postgresql.TSQUERY)


def _and_not(one: sa.ColumnElement[Any], other: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return _and(one, sa.func.tsquery_not(other, type_=postgresql.TSQUERY))
