"""Triggers that withhold rows."""

from __future__ import annotations

import sqlalchemy as sa


def eat(engine: sa.Engine, event: str, table: str, condition: str = "") -> None:
    """Let a trigger withhold one kind of change from a table, for rows of which a condition holds."""
    when = f" WHEN ({condition})" if condition else ""
    head = f"CREATE TRIGGER eats_{event} BEFORE {event} ON {table} FOR EACH ROW{when}"
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql(f"{head} BEGIN SELECT RAISE(IGNORE); END")
        else:
            connection.exec_driver_sql(
                "CREATE OR REPLACE FUNCTION eat() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
            )
            connection.exec_driver_sql(f"{head} EXECUTE FUNCTION eat()")
