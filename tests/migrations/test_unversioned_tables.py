"""Tables whose migration revision is not recorded: after a partial restore, or from `metadata.create_all`."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from support.commands import run
from support.factories import message

from lango_store import LangoStoreError, Store, create_engine, schema
from lango_store.schema import unversioned
from lango_store.schema.running import script_directory
from lango_store.tables import SCHEMA_REVISION, VERSION_TABLE, Base

pytestmark = pytest.mark.slow

SAME_NAMES = {"0108": "0107"}
"""Revisions that change neither columns nor indexes, with the revision before them; the upgrade can run them again."""

REVISIONS = [script.revision for script in script_directory().walk_revisions()]


def forget_revision(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE {VERSION_TABLE}")
    engine.dispose()


@pytest.fixture(scope="module")
def known_revisions() -> list[tuple[str, frozenset[str]]]:
    return [*unversioned._revisions()]


@pytest.mark.parametrize("revision", REVISIONS)
def test_upgrade_without_a_recorded_revision_names_the_revision_to_stamp(
    empty_url: str,
    revision: str,
    known_revisions: list[tuple[str, frozenset[str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unversioned, "_revisions", lambda: known_revisions)  # takes most of the time
    schema.upgrade(empty_url, revision)
    forget_revision(empty_url)
    named = SAME_NAMES.get(revision, revision)
    with pytest.raises(LangoStoreError, match=f"db stamp {named}`.*db upgrade`"):
        schema.upgrade(empty_url)
    schema.stamp(empty_url, named)
    schema.upgrade(empty_url)
    assert schema.check(empty_url) == []


CALLS: list[Callable[[sa.Engine], object]] = [
    schema.upgrade,
    lambda engine: Store(engine).count(),
    lambda engine: Store(engine).maintenance.examine(),
    lambda engine: Store(engine, migrate=True).ping(),
]


@pytest.mark.parametrize("call", CALLS, ids=["upgrade", "call", "examine", "ping with migrate"])
def test_tables_of_create_all_can_be_used_after_the_stamp_that_the_error_names(
    empty_url: str, call: Callable[[sa.Engine], object]
) -> None:
    engine = create_engine(empty_url)
    Base.metadata.create_all(engine)
    with pytest.raises(LangoStoreError, match=f"db stamp {SCHEMA_REVISION}`"):
        call(engine)
    schema.stamp(engine, SCHEMA_REVISION)
    assert schema.check(engine) == []
    with Store(engine) as store:
        assert store.append_message("k", message(), create=True).seq == 1
    engine.dispose()


def test_first_call_in_callers_transaction_names_the_revision_to_stamp(url: str) -> None:
    forget_revision(url)
    with Store(url, migrate=True) as store, store.engine.begin() as connection:
        with pytest.raises(LangoStoreError, match=f"db stamp {SCHEMA_REVISION}`"):
            store.using(connection).count()
        with pytest.raises(LangoStoreError, match=f"db stamp {SCHEMA_REVISION}`"):
            schema.upgrade(connection)


def test_tables_that_match_no_revision_are_compared_with_the_most_similar_one(url: str) -> None:
    forget_revision(url)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE lango_payload")
        connection.exec_driver_sql("DROP INDEX ix_lango_session_updated_bucket")
        connection.exec_driver_sql("ALTER TABLE lango_session ADD COLUMN mood TEXT")
    for call in (schema.upgrade, lambda engine: Store(engine).ping()):
        with pytest.raises(LangoStoreError, match="match no revision") as raised:
            call(engine)
        assert schema.check(engine) == [str(raised.value)]
        assert (
            f"Compared with {SCHEMA_REVISION}, the most similar one, "
            "missing: lango_payload, lango_session.ix_lango_session_updated_bucket; unexpected: lango_session.mood."
        ) in str(raised.value)
    engine.dispose()


def test_many_differences_are_shortened(empty_url: str) -> None:
    engine = create_engine(empty_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE lango_session (in_the_way INTEGER)")
    (difference,) = schema.check(engine)
    assert "lango_message, lango_session.agent_id" in difference
    assert "more; unexpected: lango_session.in_the_way. " in difference
    engine.dispose()


def test_commands_follow_from_each_other_until_the_schema_is_usable(url: str) -> None:
    with Store(url) as store:
        store.create("k")
    forget_revision(url)
    environment = {"LANGO_STORE_URL": url}
    assert run("db", "current", environment=environment).stdout.startswith("no revision")
    for command in ("db upgrade", "db check", "sessions list", "doctor"):
        done = run(*command.split(), environment=environment)
        assert done.returncode == 1
        assert f"lango-store db stamp {SCHEMA_REVISION}" in done.stdout + done.stderr
    for command in (f"db stamp {SCHEMA_REVISION}", "db upgrade", "db check"):
        assert run(*command.split(), environment=environment).returncode == 0
    assert "k" in run("sessions", "list", environment=environment).stdout
