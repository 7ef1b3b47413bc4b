"""Snapshots and passwords on the page about PostgreSQL. `test_roles.py` runs the other statements."""

from pathlib import Path
from typing import Any

from support.databases import MakeDatabase
from support.pages import blocks

from lango_store import Store, create_engine

*_, QUERY = blocks("docs/production/postgresql.md", "sql")
PASSWORDS = blocks("docs/production/postgresql.md", "python")[-1]


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


def test_each_new_connection_uses_the_current_password(make_postgres: MakeDatabase, tmp_path: Path) -> None:
    def password_used(store: Store) -> str:
        with store.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            return str(driver.info.password)

    file = tmp_path / "password"
    file.write_text("first\n")
    program = PASSWORDS.replace("/run/secrets/agents_app", str(file))
    program = program.replace("postgresql://agents_app@db/agents", make_postgres())
    names: dict[str, Any] = {}
    exec(program, names)
    store: Store = names["store"]
    assert store.create("k").key == "k"
    assert password_used(store) == "first"
    file.write_text("second\n")
    with store.snapshot() as view:  # an open connection stays
        assert view.exists("k")
        assert password_used(store) == "second"
    store.close()
    store.engine.dispose()
