"""The policies of the page about users: a second line of defense, under a store for one user and without one."""

import contextvars
import uuid
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase, not_on_a_cluster
from support.factories import message
from support.pages import blocks

from lango_store import NotPermitted, SessionNotFound, Store, create_engine
from lango_store._operations.session_tables import CHILDREN

(POLICIES,) = blocks("docs/howto/users.md", "sql")
OF_MESSAGES = POLICIES[POLICIES.index("ALTER TABLE lango_message") :]

user = contextvars.ContextVar("user", default="")


@pytest.fixture
def protected(make_postgres: MakeDatabase) -> Iterator[sa.Engine]:
    """An engine whose transactions have a role without other rights, and the user of the context."""
    role, owner, engine = f"users_{uuid.uuid4().hex[:10]}", create_engine(make_postgres()), None
    others = [OF_MESSAGES.replace("lango_message", each.table.name) for each in CHILDREN]
    with owner.begin() as connection:
        for statement in "".join([POLICIES.replace(OF_MESSAGES, ""), *others]).split(";"):
            if statement.strip():
                connection.exec_driver_sql(statement)
        connection.exec_driver_sql(f"CREATE ROLE {role}")
        connection.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
    engine = create_engine(owner.url)

    @sa.event.listens_for(engine, "begin")
    def name_user(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL ROLE {role}")
        connection.exec_driver_sql("SELECT set_config('app.user', %s, true)", (user.get(),))

    yield engine
    engine.dispose()
    with owner.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {role}")
        connection.exec_driver_sql(f"DROP ROLE {role}")
    owner.dispose()


@not_on_a_cluster("policies and roles of a cluster are set on each node")
def test_policies_of_the_page_agree_with_a_store_for_one_user(protected: sa.Engine) -> None:
    with Store(protected) as store:
        for name in ("ann", "bob"):
            user.set(name)
            own = store.for_user(name)
            conversation = own.open(f"{name}:1", messages=[message(name)])
            own.append_message(f"{name}:2", message(name), create=True)
            conversation.save_turn([message("turn")], {"tokens": 1}, id="t")
            conversation.values.set({"a": 1})
            conversation.inbox.put(message("later"))
            own.shared_values(f"user:{name}").set({"a": name})
            with conversation.turn("u") as turn:
                turn.take_inbox()
                turn.write("draft")
                turn.flush()
                turn.append(message("answer", role="assistant"))
            conversation.child("c")
            assert own.delete(conversation.fork().key)
        user.set("ann")
        for each in (store, store.for_user("ann")):
            assert [info.key for info in each.iter_sessions()] == ["ann:1", "ann:1/c", "ann:2"]
            assert each.usage()[0].usage["tokens"] == 1
            with pytest.raises(SessionNotFound):
                each.get("bob:1")
        assert store.shared_values("user:bob").get() == {}
        with pytest.raises(NotPermitted):
            store.create("c", user_id="bob")
        hidden = store.erase("bob", scopes=["user:bob"])
        assert (hidden.erased, "rows that its policies hide" in str(hidden.remains)) == ({"store": {}}, True)
        with protected.begin() as connection:
            keys = connection.exec_driver_sql("SELECT DISTINCT session_key FROM lango_message ORDER BY 1")
            assert keys.scalars().all() == ["ann:1", "ann:2"]
