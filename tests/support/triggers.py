"""Triggers that withhold rows."""

import sqlalchemy as sa
from support.clusters import say, shards
from support.databases import CITUS


def eat(engine: sa.Engine, event: str, table: str, condition: str = "") -> None:
    """Let a trigger withhold one kind of change from a table, for rows of which a condition holds.

    On a cluster it is on the parts of the table, since the table itself may have none.
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
