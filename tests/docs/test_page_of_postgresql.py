"""The query for connections with a snapshot on the page about PostgreSQL. `test_roles.py` runs the other statements."""

from support.databases import MakeDatabase
from support.pages import blocks

from lango_store import create_engine

*_, QUERY = blocks("docs/production/postgresql.md", "sql")


def test_query_for_snapshots_returns_the_connection_that_holds_one(make_postgres: MakeDatabase) -> None:
    engine = create_engine(make_postgres())
    with engine.connect() as holder, engine.connect() as other:
        holder.execution_options(isolation_level="REPEATABLE READ")
        other.execution_options(isolation_level="AUTOCOMMIT")
        pid = holder.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        states = {row.pid: row.state for row in other.exec_driver_sql(QUERY)}
        assert states[pid] == "idle in transaction"
        holder.rollback()
        assert pid not in {row.pid for row in other.exec_driver_sql(QUERY)}
    engine.dispose()
