"""The store's migrations on a host's connection and inside a host's Alembic run."""

import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from support.databases import MakeDatabase
from support.factories import messages
from support.pages import blocks
from support.revisions import LATER, add_later_revisions

from lango_store import LangoStoreError, SchemaOutOfDate, Store, create_engine, schema
from lango_store.tables import SCHEMA_REVISION

ENV = """
from alembic import context
from lango_store import Store, create_engine, schema

url = context.config.get_main_option("sqlalchemy.url")
engine = create_engine(url)
with engine.connect() as connection:
    {here}
    connection.rollback()
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""

REVISION = """
import sqlalchemy as sa
from alembic import context, op
from lango_store import Store, schema

revision, down_revision = "{number}", {before}
url = context.config.get_main_option("sqlalchemy.url")


def upgrade():
    {here}
    op.create_table("host_{number}", sa.Column("number", sa.Integer, primary_key=True))
    assert context.get_context().script is not None


def downgrade():
    op.drop_table("host_{number}")
"""

WAYS = {
    "a URL": "schema.upgrade(url)",
    "a store that migrates": "store = Store(url, migrate=True); store.ping(); store.close()",
    "the connection": "schema.upgrade({connection})",
}


def host(folder: Path, url: str, *, env: str = "pass", revision: str = "pass", whole_env: str | None = None) -> Config:
    """Create a host's Alembic project of two revisions that calls our upgrade in env.py or the first revision."""
    (folder / "versions").mkdir(parents=True)
    (folder / "env.py").write_text(whole_env or ENV.format(here=env))
    for number, before, here in (("h1", None, revision), ("h2", "h1", "pass")):
        text = REVISION.format(number=number, before=repr(before), here=here)
        (folder / "versions" / f"{number}.py").write_text(text)
    config = Config()
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "os")
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def assert_both_are_there(url: str) -> None:
    engine = create_engine(url)
    assert schema.check(engine) == []
    assert {"host_h1", "host_h2", "alembic_version"} <= set(sa.inspect(engine).get_table_names())
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_migrations_of_the_application_run_after_the_file_env_py_upgraded_the_store(
    tmp_path: Path, empty_url: str, way: str
) -> None:
    line = WAYS[way].format(connection="connection") + ("; connection.commit()" if way == "the connection" else "")
    command.upgrade(host(tmp_path / "host", empty_url, env=line), "head")
    assert_both_are_there(empty_url)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_application_migration_can_upgrade_the_store(tmp_path: Path, empty_url: str, way: str) -> None:
    config = host(tmp_path / "host", empty_url, revision=WAYS[way].format(connection="op.get_bind()"))
    command.upgrade(config, "head")
    assert_both_are_there(empty_url)


def test_documented_env_py_migrates_both_the_application_and_the_store_or_neither_on_postgresql(
    tmp_path: Path, empty_url: str
) -> None:
    (env,) = blocks("docs/production/migrations.md", "text")
    failing = host(tmp_path / "failing", empty_url, revision="raise RuntimeError('the host')", whole_env=env)
    with pytest.raises(RuntimeError, match="the host"):
        command.upgrade(failing, "head")
    assert schema.current(empty_url) == (SCHEMA_REVISION if empty_url.startswith("sqlite") else None)
    command.upgrade(host(tmp_path / "host", empty_url, whole_env=env), "head")
    assert_both_are_there(empty_url)


def test_upgrade_commits_only_a_transaction_that_it_began(empty_url: str) -> None:
    engine = create_engine(empty_url)
    with engine.connect() as connection:
        with connection.begin() as transaction:
            assert schema.upgrade(connection) == SCHEMA_REVISION == schema.current(connection)
            transaction.rollback()
        assert schema.current(connection) is None
        with connection.begin() as transaction:
            assert schema.stamp(connection, SCHEMA_REVISION) == SCHEMA_REVISION
            transaction.rollback()
        assert schema.upgrade(connection) == SCHEMA_REVISION
        assert not connection.in_transaction()
        assert schema.check(connection) == []
    with Store(engine) as store:
        store.create("k", messages=messages(2))
    with engine.connect() as connection, connection.begin() as transaction:
        assert schema.stamp(connection, "base") is None
        transaction.rollback()
    with Store(engine) as store:
        assert len(store.conversation("k").messages()) == 2
    engine.dispose()


@pytest.mark.slow
def test_failed_upgrade_leaves_callers_transaction_usable(empty_url: str) -> None:
    engine = create_engine(empty_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE host (n INTEGER)")
        connection.exec_driver_sql("CREATE INDEX ix_lango_suspension_open ON host (n)")
        with pytest.raises(LangoStoreError, match="already exists"):
            schema.upgrade(connection)
        connection.exec_driver_sql("DROP TABLE host")
        assert schema.current(connection) is None
        assert schema.upgrade(connection) == SCHEMA_REVISION
    assert schema.check(engine) == []
    engine.dispose()


@pytest.mark.slow
def test_upgrade_in_callers_transaction_keeps_rows_and_downgrade_is_refused_on_sqlite(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_later_revisions(tmp_path / "later", monkeypatch)
    schema.upgrade(empty_url, SCHEMA_REVISION)
    engine = create_engine(empty_url)
    with engine.begin() as connection:
        stamped = "'k', '2026-01-01 00:00:00.000000+00:00'"
        connection.exec_driver_sql(
            f"INSERT INTO lango_session (key, created_at, updated_at, last_seq, message_count) "
            f"VALUES ({stamped}, '2026-01-01 00:00:00.000000+00:00', 1, 1)"
        )
        connection.exec_driver_sql(
            f"INSERT INTO lango_message (session_key, created_at, seq, role, text) VALUES ({stamped}, 1, 'user', 'hi')"
        )
        assert schema.upgrade(connection) == LATER[-1]
        if engine.dialect.name == "sqlite":
            with pytest.raises(LangoStoreError, match="foreign_keys = OFF"):
                schema.downgrade(connection, SCHEMA_REVISION)
        else:
            assert schema.downgrade(connection, SCHEMA_REVISION) == SCHEMA_REVISION
            assert schema.upgrade(connection) == LATER[-1]
    with Store(engine) as store:
        assert len(store.conversation("k").messages()) == 1
    engine.dispose()


@pytest.mark.slow
def test_upgrade_waits_for_commit_of_another_upgrade(empty_url: str) -> None:
    engine = create_engine(empty_url)
    found: list[str | None] = []
    other = threading.Thread(target=lambda: found.append(schema.upgrade(empty_url)))
    with engine.begin() as connection:
        schema.upgrade(connection)
        other.start()
        other.join(0.3)
        assert found == []
    other.join(60)
    assert found == [SCHEMA_REVISION]
    engine.dispose()


@pytest.mark.slow
def test_upgrades_of_several_databases_can_run_in_threads(make_database: MakeDatabase) -> None:
    urls = [make_database(migrated=False) for _ in range(4)]
    threads = [threading.Thread(target=schema.upgrade, args=(url,)) for url in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [schema.check(url) for url in urls] == [[]] * 4


# The search path of PostgreSQL


def wrong(store: Store) -> list[str]:
    return [finding.detail for finding in store.maintenance.examine() if finding.name != "settings"]


@pytest.mark.slow
def test_upgrade_ignores_tables_in_other_schemas_of_search_path(make_postgres: MakeDatabase) -> None:
    url = make_postgres()  # migrated in public
    with Store(url) as store:
        store.create("k", title="public")
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA tenant_b")
    tenant = f"{url}&options=-csearch_path%3Dtenant_b,public"
    with Store(tenant) as store, pytest.raises(SchemaOutOfDate, match="'tenant_b'") as raised:
        store.create("k")
    assert (raised.value.found, raised.value.schema) == (None, "tenant_b")
    assert schema.current(tenant) is None
    assert (schema.namespace(tenant), schema.namespace(url)) == ("tenant_b", "public")
    assert "'tenant_b'" in schema.check(tenant)[0]
    with Store(tenant, migrate=True) as store:
        store.create("k", title="tenant_b")
        assert wrong(store) == []
        with store.engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE lango_turn")
    assert any("lango_turn" in difference for difference in schema.check(tenant))
    with Store(tenant) as store:
        assert "lango_turn" in wrong(store)[0]
    with Store(url) as store:
        assert store.conversation("k").info().title == "public"
        assert wrong(store) == []
    engine.dispose()


@pytest.mark.slow
def test_upgrade_keeps_callers_search_path(make_postgres: MakeDatabase) -> None:
    engine = create_engine(make_postgres(migrated=False))
    with engine.begin() as connection:
        connection.exec_driver_sql('CREATE SCHEMA "Tenant B"')
        connection.exec_driver_sql("""SET LOCAL search_path = "Tenant B", public; SET LOCAL lock_timeout = '7s'""")
        before = connection.exec_driver_sql("SHOW search_path").scalar()
        schema.upgrade(connection)
        assert schema.check(connection) == []
        assert connection.exec_driver_sql("SHOW search_path").scalar() == before
        assert connection.exec_driver_sql("SHOW lock_timeout").scalar() == "7s"
        assert sa.inspect(connection).has_table("lango_session", schema="Tenant B")
        assert not sa.inspect(connection).has_table("lango_session", schema="public")
    engine.dispose()


def test_upgrade_refuses_a_search_path_whose_schema_does_not_exist(make_postgres: MakeDatabase) -> None:
    with pytest.raises(LangoStoreError, match=r"nowhere.*CREATE SCHEMA"):
        schema.upgrade(f"{make_postgres(migrated=False)}&options=-csearch_path%3Dnowhere")
