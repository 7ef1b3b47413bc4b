"""Reasons for refusing to distribute or undistribute tables, their remedies, and the report of doctor."""

import re

import pytest
import sqlalchemy as sa
from support.clusters import ALL_KEYS, contents, distributed, fill, foreign_keys, is_whole, say
from support.commands import run
from support.databases import MakeDatabase

from lango_store import LangoStoreError, SchemaOutOfDate, Store, schema


@pytest.fixture
def cluster(undistributed: str) -> str:
    """The coordinator's URL of a database with rows in tables that are not distributed."""
    fill(undistributed)
    return undistributed


# Without a cluster


def test_sqlite_file_cannot_be_distributed(make_sqlite: MakeDatabase) -> None:
    for move in (schema.distribute, schema.undistribute):
        with pytest.raises(LangoStoreError, match="lango-store copy"):
            move(make_sqlite())


def test_distribute_without_citus_says_to_create_the_extension(make_postgres: MakeDatabase) -> None:
    url = make_postgres(migrated=False)
    say(url, "DROP EXTENSION IF EXISTS citus CASCADE")
    schema.upgrade(url)
    for move in (schema.distribute, schema.undistribute):
        with pytest.raises(LangoStoreError, match="CREATE EXTENSION citus"):
            move(url)
    done = run("db", "distribute", "--dry-run", "--url", url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "CREATE EXTENSION citus" in done.stderr


# Obstacles

TRIGGER = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'"
OBSTACLES = {
    "a trigger": (TRIGGER, "CREATE TRIGGER t BEFORE INSERT ON lango_session FOR EACH ROW EXECUTE FUNCTION f()"),
    "a rule": ("CREATE RULE r AS ON DELETE TO lango_message DO ALSO NOTIFY gone",),
    "a policy with a query": ("CREATE POLICY p ON lango_turn USING (id IN (SELECT rolname FROM pg_roles))",),
    "a foreign key into our tables": ("CREATE TABLE ticket (chat text REFERENCES lango_session (key))",),
    "a foreign key out of our tables": (
        "CREATE TABLE person (id text PRIMARY KEY)",
        "INSERT INTO person SELECT user_id FROM lango_session WHERE user_id IS NOT NULL",
        "ALTER TABLE lango_session ADD CONSTRAINT of_a_person FOREIGN KEY (user_id) REFERENCES person (id)",
    ),
}
REMEDY = r"(?:DROP TRIGGER \w+ ON \w+|DROP RULE \w+ ON \w+|ALTER TABLE \w+ DROP CONSTRAINT \w+)"


@pytest.mark.citus
@pytest.mark.parametrize("obstacle", OBSTACLES.values(), ids=OBSTACLES.keys())
def test_distribute_names_an_obstacle_and_works_after_the_named_remedy(
    undistributed: str, obstacle: tuple[str, ...]
) -> None:
    say(undistributed, *obstacle)
    with pytest.raises(LangoStoreError) as refused:
        schema.distribute(undistributed)
    with pytest.raises(LangoStoreError, match=re.escape(str(refused.value))):
        schema.distribute(undistributed, dry_run=True)
    assert distributed(undistributed) == {}
    assert foreign_keys(undistributed)[-len(ALL_KEYS) :] == ALL_KEYS or "of_a_person" in foreign_keys(undistributed)
    remedies = re.findall(REMEDY, str(refused.value)) or ["DROP POLICY p ON lango_turn"]
    say(undistributed, *remedies)
    schema.distribute(undistributed)
    assert is_whole(undistributed)


@pytest.mark.citus
def test_distribute_names_all_obstacles_in_one_error(undistributed: str) -> None:
    for obstacle in OBSTACLES.values():
        say(undistributed, *obstacle)
    with pytest.raises(LangoStoreError) as refused:
        schema.distribute(undistributed)
    for name in ("trigger t", "rule r", "policy p", "ticket_chat_fkey", "of_a_person"):
        assert name in str(refused.value)


@pytest.mark.citus
def test_foreign_key_of_another_table_prevents_undistribution(cluster: str) -> None:
    schema.distribute(cluster)
    say(
        cluster,
        'CREATE TABLE ticket (chat text COLLATE "C", number integer)',
        "SELECT create_distributed_table('ticket', 'chat', colocate_with => 'lango_session')",
        "ALTER TABLE ticket ADD CONSTRAINT of_a_chat FOREIGN KEY (chat) REFERENCES lango_session (key)",
    )
    with pytest.raises(LangoStoreError, match="ALTER TABLE ticket DROP CONSTRAINT of_a_chat"):
        schema.undistribute(cluster)
    assert "ticket" in distributed(cluster)
    assert is_whole(cluster)


@pytest.mark.citus
def test_search_index_prevents_distribution(cluster: str) -> None:
    schema.enable_search(cluster)
    with pytest.raises(LangoStoreError, match="lango-store search disable"):
        schema.distribute(cluster)
    schema.disable_search(cluster)
    schema.distribute(cluster)
    assert is_whole(cluster)
    for make in (schema.enable_search, schema.rebuild_search):
        with pytest.raises(LangoStoreError, match="tables are distributed"):
            make(cluster)
    assert schema.disable_search(cluster) is False
    schema.undistribute(cluster)
    assert schema.enable_search(cluster).state == "ready"


@pytest.mark.citus
def test_tables_of_another_migration_revision_cannot_be_distributed(make_postgres: MakeDatabase) -> None:
    url = make_postgres(migrated=False)
    for move in (schema.distribute, schema.undistribute):
        with pytest.raises(SchemaOutOfDate, match="lango-store db upgrade"):
            move(url)
    schema.upgrade(url)
    say(url, "UPDATE lango_store_version SET version_num = '9999'")
    with pytest.raises(SchemaOutOfDate, match="upgrade the package"):
        schema.distribute(url)


@pytest.mark.citus
def test_role_that_does_not_own_the_tables_cannot_distribute(cluster: str, request: pytest.FixtureRequest) -> None:
    say(cluster, "DROP ROLE IF EXISTS lango_visitor", "CREATE ROLE lango_visitor LOGIN")
    request.addfinalizer(lambda: say(cluster, "DROP OWNED BY lango_visitor", "DROP ROLE lango_visitor"))
    say(cluster, "GRANT ALL ON ALL TABLES IN SCHEMA public TO lango_visitor")
    visitor = sa.make_url(cluster).set(username="lango_visitor").render_as_string(hide_password=False)
    with pytest.raises(LangoStoreError, match="does not own lango_call, lango_change"):
        schema.distribute(visitor)


@pytest.mark.citus
def test_table_owner_who_is_no_superuser_can_distribute(
    make_postgres: MakeDatabase, request: pytest.FixtureRequest
) -> None:
    url = make_postgres(migrated=False)
    say(url, "CREATE ROLE lango_owner LOGIN")
    request.addfinalizer(lambda: say(url, "DROP OWNED BY lango_owner", "DROP ROLE lango_owner"))
    say(url, "GRANT CREATE ON SCHEMA public TO lango_owner")
    owner = sa.make_url(url).set(username="lango_owner").render_as_string(hide_password=False)
    schema.upgrade(owner)
    fill(owner)
    rows = contents(owner)
    schema.distribute(owner)
    assert is_whole(owner)
    assert contents(owner) == rows
    schema.undistribute(owner)
    assert contents(owner) == rows


@pytest.mark.citus
def test_distribute_without_worker_nodes_says_to_add_a_worker(cluster: str) -> None:
    say(cluster, "SELECT citus_set_node_property(nodename, nodeport, 'shouldhaveshards', false) FROM pg_dist_node")
    with pytest.raises(LangoStoreError, match="citus_add_node"):
        schema.distribute(cluster)


# Doctor


def findings(url: str) -> list[tuple[str, str]]:
    with Store(url) as store:
        return [(each.detail, each.remedy) for each in store.maintenance.examine() if each.name == "distribution"]


APART = {
    "the revision is not everywhere": (
        "SELECT undistribute_table('lango_store_version')",
        "lango_store_version is not distributed",
    ),
    "one is not": ("SELECT undistribute_table('lango_shared_value')", "lango_shared_value is not distributed"),
}


@pytest.mark.citus
@pytest.mark.parametrize("change", APART.values(), ids=APART.keys())
def test_doctor_names_the_only_table_that_is_not_distributed(cluster: str, change: tuple[str, ...]) -> None:
    assert findings(cluster) == []
    schema.distribute(cluster)
    assert findings(cluster) == []
    statement, detail = change
    say(cluster, statement)
    ((found, next_),) = findings(cluster)
    assert detail in found
    assert "db distribute" in next_
    schema.distribute(cluster)
    assert findings(cluster) == []
    assert is_whole(cluster)
