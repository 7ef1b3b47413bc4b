"""The search index on PostgreSQL after its schema was renamed, moved or copied, and the rights of its function."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase, not_on_a_cluster
from support.factories import message
from support.searches import found, waiting

from lango_store import LangoStoreError, NotPermitted, SearchUnavailable, Store, create_engine, schema
from lango_store.tables import Base

pytestmark = not_on_a_cluster("a search index is refused on distributed tables")

TABLES = (*Base.metadata.tables, "lango_store_version", "lango_search", "lango_search_queue")
OUTDATED = """
CREATE OR REPLACE FUNCTION "Tenant A".lango_search_enqueue() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO "Tenant A".lango_search_queue (session_key, seq)
  SELECT session_key, seq FROM changed WHERE TG_OP = 'UPDATE' OR role <> 'record';
  RETURN NULL;
END $$
"""


@pytest.fixture
def url(make_postgres: MakeDatabase) -> str:
    """Return the URL of a database with a store in the schema "Tenant A", which has a search index and a message."""
    url = make_postgres(migrated=False)
    execute(url, 'CREATE SCHEMA "Tenant A"')
    with store_in(url, "Tenant A") as store:
        schema.upgrade(store.engine)
        store.create("a", messages=[message("oslo")])
        schema.enable_search(store.engine)
    return url


@contextmanager
def store_in(url: str, namespace: str, role: str = "postgres") -> Iterator[Store]:
    """Yield a store in a schema of the database."""
    options = f'-csearch_path="{namespace}" -crole={role}'.replace(" A", "\\ A").replace(" B", "\\ B")
    engine = create_engine(url, connect_args={"options": options})
    with Store(engine) as store:
        yield store
    engine.dispose()


@contextmanager
def role_in(url: str, name: str) -> Iterator[str]:
    """Create a role that may use the schema "Tenant A", and drop the role afterwards."""
    execute(url, f'CREATE ROLE {name}; GRANT USAGE ON SCHEMA "Tenant A" TO {name}')
    try:
        yield name
    finally:
        execute(url, f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def execute(url: str, statement: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def faults(store: Store) -> list[str]:
    """Return what `db check`, `search status` and `doctor` report about the index."""
    reason = schema.search_status(store.engine).reason
    remedies = [f"{each.detail}: {each.remedy}" for each in store.maintenance.examine() if each.name == "search index"]
    return [*schema.check(store.engine), *([] if reason is None else [reason]), *remedies]


def test_search_index_works_after_its_schema_is_renamed(url: str) -> None:
    with store_in(url, "Tenant A") as store:
        store.append_message("a", message("oslo 2"))
    execute(url, 'ALTER SCHEMA "Tenant A" RENAME TO "Tenant B"')
    with store_in(url, "Tenant B") as store:
        store.append_message("a", message("oslo 3"))
        assert found(store, "oslo") == [("a", 1), ("a", 2), ("a", 3)]
        assert faults(store) == []


def test_open_connection_uses_the_queue_of_a_renamed_schema(url: str) -> None:
    engine = create_engine(url)
    names = ("Tenant A", "Tenant B", "Tenant A")
    with engine.connect() as connection:
        for before, after in pairwise(names):
            connection.exec_driver_sql(f"""UPDATE "{before}".lango_message SET text = 'bergen'""")
            connection.commit()
            execute(url, f'ALTER SCHEMA "{before}" RENAME TO "{after}"')
    engine.dispose()
    with store_in(url, "Tenant A") as store:
        assert waiting(store) == 2
        assert found(store, "bergen") == [("a", 1)]


def test_moved_tables_queue_changes_but_need_the_function_in_their_schema(url: str) -> None:
    moves = [f'ALTER TABLE IF EXISTS "Tenant A".{name} SET SCHEMA "Tenant B"' for name in TABLES]
    execute(url, "; ".join(['CREATE SCHEMA "Tenant B"', *moves]))
    with store_in(url, "Tenant B") as store:
        store.append_message("a", message("oslo 2"))
        assert len(faults(store)) == 3
        assert all("another schema or owner" in fault and "search rebuild" in fault for fault in faults(store))
        with pytest.raises(SearchUnavailable, match="search rebuild"):
            store.search("oslo")
        execute(url, 'ALTER FUNCTION "Tenant A".lango_search_enqueue() SET SCHEMA "Tenant B"')
        assert found(store, "oslo") == [("a", 1), ("a", 2)]
        assert faults(store) == []


def test_copied_triggers_fill_the_queue_of_their_own_schema(url: str) -> None:
    with store_in(url, "Tenant A") as original, store_in(url, "Tenant B") as copy:
        execute(url, 'CREATE SCHEMA "Tenant B"')
        schema.upgrade(copy.engine)
        schema.enable_search(copy.engine)
        copy.create("secret", messages=[message("oslo")])
        execute(
            url,
            'DROP TRIGGER lango_search_inserted ON "Tenant B".lango_message; '
            'CREATE TRIGGER lango_search_inserted AFTER INSERT ON "Tenant B".lango_message '
            "REFERENCING NEW TABLE AS changed FOR EACH STATEMENT "
            'EXECUTE FUNCTION "Tenant A".lango_search_enqueue()',
        )
        copy.append_message("secret", message("oslo 2"))
        assert waiting(original) == 0
        assert all("another schema or owner" in fault for fault in faults(copy))
        schema.rebuild_search(copy.engine)
        assert found(copy, "oslo") == [("secret", 1), ("secret", 2)]
        assert (faults(copy), faults(original)) == ([], [])
        schema.disable_search(copy.engine)
        assert schema.search_status(original.engine).state == "ready"


def test_upgrade_replaces_an_outdated_function(url: str) -> None:
    execute(url, OUTDATED)
    execute(url, 'ALTER SCHEMA "Tenant A" RENAME TO "Tenant B"')
    with store_in(url, "Tenant B") as store:
        with pytest.raises(LangoStoreError):
            store.append_message("a", message("oslo 2"))
        assert len(faults(store)) == 3
        assert all("outdated: run `lango-store db upgrade`" in fault for fault in faults(store))
        with pytest.raises(SearchUnavailable, match="db upgrade"):
            store.search("oslo")
        schema.upgrade(store.engine)
        store.append_message("a", message("oslo 2"))
        assert found(store, "oslo") == [("a", 1), ("a", 2)]
        assert faults(store) == []


def test_upgrade_in_a_transaction_replaces_an_outdated_function(url: str) -> None:
    execute(url, OUTDATED)
    with store_in(url, "Tenant A") as store:
        with store.engine.connect() as connection, connection.begin() as transaction:
            schema.upgrade(connection)
            transaction.rollback()
        assert "outdated" in faults(store)[0]
        with store.engine.begin() as connection:
            schema.upgrade(connection)
        assert faults(store) == []


def test_upgrade_by_another_role_leaves_an_outdated_function(url: str) -> None:
    execute(url, OUTDATED)
    with role_in(url, "lango_other") as role:
        execute(url, f'GRANT SELECT ON ALL TABLES IN SCHEMA "Tenant A" TO {role}')
        with store_in(url, "Tenant A", role) as store:
            assert schema.upgrade(store.engine) == schema.head()
            assert "outdated" in str(schema.search_status(store.engine).reason)


def test_role_cannot_run_the_function_with_its_own_tables(url: str) -> None:
    trigger = (
        "CREATE TEMPORARY TABLE mine (session_key text, seq bigint, role text); "
        "CREATE TEMPORARY TABLE lango_search_queue (session_key text, seq bigint); "
        "CREATE TRIGGER misuse AFTER INSERT ON mine REFERENCING NEW TABLE AS changed "
        'FOR EACH STATEMENT EXECUTE FUNCTION "Tenant A".lango_search_enqueue()'
    )
    with role_in(url, "lango_other") as role, store_in(url, "Tenant A", role) as store:
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied for function"):
            execute_as(store, trigger)
        execute(url, f'GRANT EXECUTE ON FUNCTION "Tenant A".lango_search_enqueue() TO {role}')
        with pytest.raises(sa.exc.ProgrammingError, match="has another owner"):
            execute_as(store, f"{trigger}; INSERT INTO mine VALUES ('a', 1, 'user')")


def execute_as(store: Store, statement: str) -> None:
    with store.engine.begin() as connection:
        connection.exec_driver_sql(statement)


def test_search_index_of_a_queue_with_another_owner_is_reported(url: str) -> None:
    with role_in(url, "lango_other") as role, store_in(url, "Tenant A") as store:
        execute(url, f'ALTER TABLE "Tenant A".lango_search_queue OWNER TO {role}')
        assert all("another schema or owner" in fault for fault in faults(store))
        with pytest.raises(NotPermitted, match="search rebuild"):
            store.append_message("a", message("oslo 2"))
        schema.rebuild_search(store.engine)
        store.append_message("a", message("oslo 2"))
        assert found(store, "oslo") == [("a", 1), ("a", 2)]
