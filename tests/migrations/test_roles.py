"""The database roles of the PostgreSQL page: each has only the permissions it needs."""

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.commands import run
from support.factories import message, messages
from support.intruders import intrude
from support.pages import blocks
from support.statements_sent import sent

from lango_store import LangoStoreError, Store, create_engine, schema
from lango_store._operations.binds import key_column
from lango_store._rooms.search.index import TABLES
from lango_store.errors import NotPermitted
from lango_store.tables import FEATURE_TABLE, Base
from lango_store.testing import Clock

pytestmark = pytest.mark.slow

DAY = timedelta(days=1)
LARGE = "long ago " * 8_000
ROLES, GRANTS, GRANTS_FOR_SEARCH, POLICIES, POLICIES_FOR_SEARCH, *_ = blocks("docs/production/postgresql.md", "sql")
LISTENER = blocks("docs/production/postgresql.md", "python")[0]


@dataclass
class Database:
    """A database with the documented roles under unique names."""

    server: sa.URL
    name: str

    def url(self, role: str) -> str:
        (password,) = (line.split("'")[1] for line in ROLES.splitlines() if f"agents_{role} " in line and "'" in line)
        made = self.server.set(username=f"{self.name}_{role}", password=password, database=self.name)
        return made.render_as_string(hide_password=False)

    def execute(self, url: str | sa.URL, script: str) -> None:
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for statement in re.split(r";(?!\n  )", script.replace("agents", self.name)):  # not in the body of a DO
                if statement.strip():
                    connection.exec_driver_sql(statement)
        engine.dispose()


@pytest.fixture
def database(server_url: sa.URL) -> Iterator[Database]:
    made = Database(server_url, f"agents{uuid.uuid4().hex[:10]}")
    try:
        made.execute(server_url, ROLES)
        assert run("db", "upgrade", "--url", made.url("owner")).returncode == 0
        made.execute(made.url("owner"), GRANTS)
        yield made
    finally:
        roles = ", ".join(f"agents_{role}" for role in ("owner", "app", "purge", "reader"))
        made.execute(server_url, f"DROP DATABASE IF EXISTS agents WITH (FORCE); DROP ROLE IF EXISTS {roles}")


def talked(url: str, now: datetime) -> None:
    """Store one expired and one live session."""
    with Store(url, clock=lambda: now - 2 * DAY) as store:
        store.create("old", ttl=DAY, messages=[message(LARGE)])
        store.conversation("old").values.set({"step": 1})
        store.append_message("k", message("Oslo weather?"), create=True)
        store.append_message("k", message(LARGE))
        store.conversation("k").values.set({"step": 1})
        store.shared_values("shared").set({"a": 1})


def begin_and_leave(store: Store) -> None:
    """Run a turn that stores a draft."""
    with store.conversation("k").turn() as turn:
        turn.write("half of an ans")
        turn.append(message(role="assistant"))


def replace_and_take_back(store: Store) -> None:
    """Replace a message, undo this, and redo it."""
    conversation = Store(store.engine, clock=store._context.clock_time, keep_removed=DAY).conversation("k")
    conversation.append_messages([message()], replace_after=1)
    assert conversation.versions.undo()
    assert conversation.versions.redo()


METHODS: dict[str, Callable[[Store], Any]] = {
    "append": lambda store: store.append_message("k", message()),
    "append a large string": lambda store: store.append_message("k", message(LARGE * 2)),
    "append or create": lambda store: store.append_message("new", message(), create=True),
    "create": lambda store: store.create("another"),
    "update": lambda store: store.conversation("k").update(title="Oslo"),
    "values": lambda store: store.conversation("k").values.set({"b": 2}),
    "shared values": lambda store: store.shared_values("shared").set({"b": 2}),
    "turn": begin_and_leave,
    "enqueue": lambda store: store.conversation("k").inbox.put(message()),
    "redact": lambda store: store.conversation("k").edits.redact(2),
    "undo": replace_and_take_back,
    "cut": lambda store: store.conversation("k").truncate(after=0),
    "fork": lambda store: store.conversation("k").fork(),
    "compact": lambda store: store.conversation("k").compact(lambda _: [message("short")], discard=True),
    "delete": lambda store: store.delete("k"),
    "purge": lambda store: store.expire(),
}
READS: dict[str, Callable[[Store], Any]] = {
    "get": lambda store: store.get("k"),
    "list": lambda store: store.list_sessions(),
    "values of": lambda store: store.conversation("k").values.get(),
    "drafts": lambda store: store.conversation("k").drafts.list(),
    "inbox": lambda store: store.conversation("k").inbox.list(),
    "open turns": lambda store: store.turns.list_in_progress().items,
    "history": lambda store: store.conversation("k").history(last=5),
    "stats": lambda store: store.stats(),
    "doctor": lambda store: store.maintenance.examine(),
    "what a purge would take": lambda store: store.expire(dry_run=True),
}


def refused(store: Store, methods: dict[str, Callable[[Store], Any]]) -> set[str]:
    """Return the methods that the database refuses, after checking that none of them changed anything."""
    found = set()
    for name, method in methods.items():
        before = everything(store)
        try:
            method(store)
        except NotPermitted:
            found.add(name)
            assert everything(store) == before
    return found


def everything(store: Store) -> Any:
    sessions = [store.get(info.key, expired=True) for info in store.list_sessions(expired=None).items]
    values = store.conversation("k").values.get() if store.exists("k") else None
    return sessions, values, store.shared_values("shared").get()


def test_application_role_can_use_every_method_but_not_change_schema(database: Database, clock: Clock) -> None:
    url = database.url("app")
    talked(url, clock())
    with Store(url, clock=clock) as store:
        assert refused(store, READS | METHODS) == set()
    for change in (
        lambda: schema.downgrade(url, "base"),
        lambda: schema.stamp(url, "base"),
        lambda: schema.enable_search(url),
    ):
        with pytest.raises(NotPermitted, match="use the URL of the role that owns the tables"):
            change()
    assert schema.check(url) == []


def test_purge_role_can_delete_and_archive_but_not_write_messages(
    database: Database, clock: Clock, tmp_path: Path
) -> None:
    talked(database.url("app"), clock())
    with Store(database.url("app"), clock=lambda: clock() - 2 * DAY, keep_removed=DAY) as store:
        store.conversation("k").edits.update(2, message("shorter"))
        store.conversation("k").truncate(after=0)
    with Store(database.url("purge"), clock=clock) as store:
        assert refused(store, READS) == set()
        writing = {name: METHODS[name] for name in METHODS.keys() - {"update", "compact", "delete", "purge"}}
        assert refused(store, writing) == writing.keys()
        report = store.expire(archive=tmp_path / "cold.db")
        assert (report.sessions, report.messages) == (1, 1)
        with store.engine.connect() as connection:
            for table in ("lango_removed_message", "lango_removed_turn", "lango_payload"):
                assert connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() == 0, table
        assert store.delete("k")
    with Store(database.url("app"), clock=clock) as store:
        assert store.restore("old", tmp_path / "cold.db").messages[0].content == LARGE


def test_reader_role_can_read_but_not_write(database: Database, clock: Clock, tmp_path: Path) -> None:
    talked(database.url("app"), clock())
    with Store(database.url("reader"), clock=clock) as store:
        assert refused(store, READS | METHODS) == METHODS.keys()
    done = run(
        "export", "--all", "--to", str(tmp_path / "backup"), "--format", "backup", "--url", database.url("reader")
    )
    assert done.returncode == 0, done.stderr
    assert run("db", "check", "--url", database.url("reader")).returncode == 0
    denied = run("expire", "--url", database.url("reader"))
    assert (denied.returncode, "permission denied" in denied.stderr) == (2, True), denied


def test_only_roles_with_grants_on_the_search_index_can_search(database: Database, clock: Clock) -> None:
    owner = create_engine(database.url("owner"))
    schema.enable_search(owner)
    owner.dispose()
    talked(database.url("app"), clock())
    for role in ("app", "reader"):
        with Store(database.url(role), clock=clock) as store, pytest.raises(NotPermitted):
            store.search("oslo")
    database.execute(database.url("owner"), GRANTS_FOR_SEARCH)
    for role in ("app", "reader"):
        with Store(database.url(role), clock=clock) as store:
            assert [hit.key for hit in store.search("oslo").items] == ["k"]
            assert [finding for finding in store.maintenance.examine() if finding.name != "settings"] == []
    with Store(database.url("purge"), clock=clock) as store:
        assert store.expire().sessions == 1


def test_row_level_security_policies_separate_tenants_that_share_a_role(database: Database) -> None:
    database.execute(database.url("owner"), POLICIES)
    program: dict[str, Any] = {}
    exec(LISTENER.replace("postgresql://agents_app@db/agents", database.url("app")), program)
    engine, tenant = program["engine"], program["tenant"]
    with Store(engine, keep_removed=DAY) as store:
        for name in ("ann", "bob"):
            tenant.set(name)
            store.create(f"{name}/1", messages=messages(2))
            store.append_message(f"{name}/2", message(id="a"), create=True)
            conversation = store.conversation(f"{name}/1")
            conversation.save_turn(messages(2), {"tokens": 1}, id="t")
            conversation.edits.update(1, message("edited"))
            store.append_message(f"{name}/2", message(LARGE))
            conversation.truncate(after=3)
            conversation.fork(f"{name}/fork")
            conversation.values.set({"a": name})
            conversation.inbox.put(message(name))
            turn = conversation.turn("given up").begin()
            turn.write(name)
            turn.abandon()
            store.shared_values(f"{name}/app").set({"a": name})
        tenant.set("ann")
        with engine.begin() as connection:
            protected = set(connection.exec_driver_sql("SELECT tablename FROM pg_policies").scalars())
            assert protected == {*Base.metadata.tables} - {FEATURE_TABLE}
            for name in protected:
                keys = connection.execute(sa.select(key_column(Base.metadata.tables[name]))).scalars().all()
                assert {key.partition("/")[0] for key in keys} <= {"ann"}, name
        assert (store.exists("bob/1"), store.delete("bob/1"), store.shared_values("bob/app").get()) == (
            False,
            False,
            {},
        )
        refusals = [refusal(store, key, create) for key in ("bob/1", "bob/unused") for create in CREATIONS]
        assert refusals[: len(CREATIONS)] == refusals[len(CREATIONS) :]  # the errors do not reveal which keys exist
        with pytest.raises(NotPermitted):
            store.shared_values("bob/app").set({"a": 1})
        tenant.set("unknown")
        assert store.stats().sessions == 0
    engine.dispose()


def test_policies_on_the_search_index_let_tenants_index_and_search_only_their_own_messages(database: Database) -> None:
    owner = create_engine(database.url("owner"))
    schema.enable_search(owner)
    database.execute(database.url("owner"), f"{POLICIES}{POLICIES_FOR_SEARCH}{GRANTS_FOR_SEARCH}")
    program: dict[str, Any] = {}
    exec(LISTENER.replace("postgresql://agents_app@db/agents", database.url("app")), program)
    engine, tenant = program["engine"], program["tenant"]
    names = ("ann", "bob")

    def hits(store: Store, words: str) -> list[list[str]]:
        found = []
        for name in names:
            tenant.set(name)
            found.append([hit.key for hit in store.search(words).items])
        return found

    def entries() -> dict[str, set[str]]:
        """Return the tenants whose rows are in each table, as the current tenant reads it."""
        with engine.begin() as connection:
            rows = {table: connection.exec_driver_sql(f"SELECT session_key FROM {table}") for table in TABLES}
            return {table: {key.partition("/")[0] for (key,) in keys} for table, keys in rows.items()}

    with Store(engine) as store:
        for name in names:
            tenant.set(name)
            store.create(f"{name}/1", messages=[message("oslo"), message(f"{name}word")])
        for name in names:
            tenant.set(name)
            assert entries() == {"lango_search": set(), "lango_search_queue": {name}}
        assert hits(store, "oslo") == [["ann/1"], ["bob/1"]]
        assert hits(store, "bobword") == [[], ["bob/1"]]
        for name in names:
            tenant.set(name)
            assert entries() == {"lango_search": {name}, "lango_search_queue": set()}
            store.conversation(f"{name}/1").edits.redact(2)
        assert hits(store, "annword") == [[], []]
        tenant.set("ann")
        assert store.delete("ann/1")
        assert hits(store, "oslo") == [[], ["bob/1"]]
    with Store(owner) as store:
        assert [finding for finding in store.maintenance.examine() if finding.name != "settings"] == []
        assert schema.search_status(owner).indexed == 2
    engine.dispose()
    owner.dispose()


CREATIONS: list[Callable[[Store, str], Any]] = [
    Store.create,
    Store.open,
    lambda store, key: store.create(key, messages=messages(2)),
    lambda store, key: store.append_message(key, message(), create=True),
]


def refusal(store: Store, key: str, create: Callable[[Store, str], Any]) -> str:
    with pytest.raises(NotPermitted) as refused:
        create(store, key)
    return str(refused.value)


def test_functions_and_operators_created_by_another_role_are_never_called(database: Database, tmp_path: Path) -> None:
    schema.enable_search(database.url("owner"))
    database.execute(database.url("owner"), f"{GRANTS_FOR_SEARCH}; GRANT CREATE ON SCHEMA public TO agents_reader")
    statements = sent(database.url("app"), tmp_path, without=["examine"])  # it sends SQLAlchemy's reflection queries
    texts = [text for each in statements.values() for text, _ in each]
    intrude(database.url("reader"), {name for text in texts for name in re.findall(r"\b([a-z_]+)\(", text)})
    assert sent(database.url("app"), tmp_path, without=["examine"]).keys() == statements.keys()


def test_doctor_names_roles_that_may_create_in_schema(database: Database) -> None:
    def remedies() -> list[str]:
        with Store(database.url("reader")) as store:
            found = [each for each in store.maintenance.examine() if "may create in schema public" in each.detail]
        return [each.remedy.replace(database.name, "agents") for each in found]

    assert remedies() == []
    database.execute(database.url("owner"), "GRANT CREATE ON SCHEMA public TO agents_app, PUBLIC")
    revokes = [f"REVOKE CREATE ON SCHEMA public FROM {role};" for role in ("PUBLIC", "agents_app")]
    assert remedies() == revokes
    database.execute(database.url("owner"), "".join(revokes))
    assert remedies() == []


def test_not_permitted_error_names_the_table_and_says_to_grant_rights(database: Database) -> None:
    with Store(database.url("reader")) as store, pytest.raises(LangoStoreError) as caught:
        store.create("k")
    assert "permission denied for table lango_session" in str(caught.value)
    assert "grant other rights to the role of this URL" in str(caught.value)
