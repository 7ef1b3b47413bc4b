"""The databases that tests are given: used again, and each as new."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from support.factories import messages
from support.postgres_databases import PostgresDatabases

from lango_store import Store, create_engine


@pytest.fixture
def databases(administrator: sa.Engine, server_url: sa.URL) -> Iterator[PostgresDatabases]:
    made = PostgresDatabases(administrator, server_url)
    yield made
    made.drop_all()


def test_a_database_with_other_rows_is_emptied_and_used_again(databases: PostgresDatabases) -> None:
    url = databases.make()
    other = databases.make()
    with Store(url) as store:
        store.create("k", messages=messages(3))
        leaked = create_engine(url).connect()
        leaked.exec_driver_sql("SELECT FROM lango_session")
        databases.take_back()
        assert {databases.make(), databases.make()} == {url, other}
        with Store(url) as again:
            assert again.count(expired=None) == 0
            again.create("k")
        leaked.invalidate()
        leaked.engine.dispose()


@pytest.mark.parametrize(
    "change",
    [
        "DROP INDEX ix_lango_session_user_id",
        "ALTER TABLE lango_message DISABLE TRIGGER ALL",
        "ALTER TABLE lango_turn ADD COLUMN mine text",
        "ALTER TABLE lango_session ENABLE ROW LEVEL SECURITY",
        "CREATE TABLE other ()",
        "CREATE SCHEMA tenant",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "GRANT SELECT ON lango_session TO PUBLIC",
        "UPDATE lango_store_version SET version_num = '0001'",
        "INSERT INTO lango_session (key, created_at, updated_at) VALUES ('k', now(), now()); ANALYZE",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET work_mem = 64', current_database()); END $$",
    ],
)
def test_a_database_that_was_changed_is_not_used_again(databases: PostgresDatabases, change: str) -> None:
    url = databases.make()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(change)
    engine.dispose()
    databases.take_back()
    assert databases.make() != url
