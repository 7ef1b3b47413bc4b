"""Triggers that suppress changes of rows."""

import sqlalchemy as sa
from support.clusters import say, shards
from support.databases import CITUS


def eat(engine: sa.Engine, event: str, table: str, condition: str = "") -> None:
    """Create a trigger that suppresses one kind of change for rows that meet a condition.

    On a cluster the trigger is created on the shards, because distributed tables cannot have triggers.
    """
    when = f" WHEN ({condition})" if condition else ""
    head = f"CREATE TRIGGER eats_{event} BEFORE {event} ON {{}} FOR EACH ROW{when}"
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql(f"{head.format(table)} BEGIN SELECT RAISE(IGNORE); END")
            return
        connection.exec_driver_sql(
            "CREATE OR REPLACE FUNCTION eat() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
        )
        if not CITUS:
            connection.exec_driver_sql(f"{head.format(table)} EXECUTE FUNCTION eat()")
    if CITUS:
        for server, part in shards(engine.url, table):
            say(server, "SET citus.enable_ddl_propagation = off", f"{head.format(part)} EXECUTE FUNCTION eat()")
