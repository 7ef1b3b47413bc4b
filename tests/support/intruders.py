"""Operators and functions created by another role, to check that statements never call them."""

from collections.abc import Collection
from typing import Final

from lango_store import create_engine

_TYPES: Final = (
    *("text", "varchar", "bpchar", "name", "int2", "int4", "int8", "float8", "numeric", "bool"),
    *("timestamptz", "interval", "json", "tsvector", "tsquery", "text[]", "int8[]", "varchar[]"),
)
_OPERATORS: Final = ("=", "<>", "<", ">", "<=", ">=", "||", "+", "-", "*", "/", "@@", "->", "->>")

# PostgreSQL prefers a function or operator with exactly matching types, in any schema of the search path.
_CREATE: Final = """
DO $do$
DECLARE
  types text[] := ARRAY[{types}];
  symbol text; one text; other text; called text;
  create_function text := 'CREATE FUNCTION public.%I(%s) RETURNS bool LANGUAGE plpgsql AS '
    || '$$ BEGIN RAISE EXCEPTION ''intruder: %s(%s)''; END $$';
BEGIN
  FOREACH one IN ARRAY types LOOP
    FOREACH other IN ARRAY types LOOP
      EXECUTE format(create_function, 'operator', one || ',' || other, 'operator', one || ',' || other);
      FOREACH symbol IN ARRAY ARRAY[{operators}] LOOP
        IF to_regoperator(format('pg_catalog.%s(%s,%s)', symbol, one, other)) IS NULL THEN
          EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.operator)',
            symbol, one, other);
        END IF;
      END LOOP;
      FOR called IN SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace
          AND proname = ANY (ARRAY[{functions}]) LOOP
        IF to_regprocedure(format('pg_catalog.%I(%s,%s)', called, one, other)) IS NULL THEN
          EXECUTE format(create_function, called, one || ',' || other, called, one || ',' || other);
        END IF;
        IF one = other AND to_regprocedure(format('pg_catalog.%I(%s)', called, one)) IS NULL THEN
          EXECUTE format(create_function, called, one, called, one);
        END IF;
      END LOOP;
    END LOOP;
  END LOOP;
END $do$;
"""


def intrude(url: str, functions: Collection[str]) -> None:
    """Create all missing operators on two types and overloads of these functions; each raises when called."""
    lists = {"types": _TYPES, "operators": _OPERATORS, "functions": sorted(functions)}
    script = _CREATE.format(**{name: ", ".join(f"'{each}'" for each in words) for name, words in lists.items()})
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(script.replace("%", "%%"))
    engine.dispose()
