"""The store in a host application's database: tables, migrations and schemas."""

import pytest
import sqlalchemy as sa
import sqlmodel
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import orm
from support.databases import MakeDatabase
from support.factories import message, messages

from lango_store import MessageRole, Store, ToolCall, create_engine, schema
from lango_store.tables import VERSION_TABLE, Base, MessageRow, SessionRow

OURS = {*Base.metadata.tables, VERSION_TABLE}


def test_create_all_of_the_application_does_not_create_tables_of_the_store(make_sqlite: MakeDatabase) -> None:
    engine = create_engine(make_sqlite(migrated=False))
    sqlmodel.SQLModel.metadata.create_all(engine)
    assert not OURS & set(sa.inspect(engine).get_table_names())
    assert not OURS & set(sqlmodel.SQLModel.metadata.tables)
    engine.dispose()


def test_alembic_autogenerate_of_the_application_ignores_tables_of_the_store(engine: sa.Engine) -> None:
    host = sa.MetaData()
    sa.Table("host_order", host, sa.Column("number", sa.Integer, primary_key=True))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_name": schema.include_name})
        differences = compare_metadata(context, host)
    assert [(what, table.name) for what, table in differences] == [("add_table", "host_order")]


@pytest.mark.slow
def test_migrations_do_not_change_tables_or_alembic_version_of_the_application(empty_url: str) -> None:
    engine = create_engine(empty_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('host_7')")
        connection.exec_driver_sql("CREATE TABLE lango_hosts_own (n INTEGER)")
    assert schema.upgrade(engine) == schema.head()
    assert schema.check(engine) == []
    schema.downgrade(engine, "base")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "host_7"
    assert {"alembic_version", "lango_hosts_own"} <= set(sa.inspect(engine).get_table_names())
    engine.dispose()


@pytest.mark.slow
def test_two_schemas_of_one_database_can_hold_two_stores(make_postgres: MakeDatabase) -> None:
    url = make_postgres(migrated=False)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA tenant_a")
        connection.exec_driver_sql("CREATE SCHEMA tenant_b")
    for tenant in ("tenant_a", "tenant_b"):
        with Store(f"{url}&options=-csearch_path%3D{tenant}", migrate=True) as store:
            store.create("k", title=tenant, messages=messages(2))
            assert schema.check(store.engine) == []
    for tenant in ("tenant_a", "tenant_b"):
        with Store(f"{url}&options=-csearch_path%3D{tenant}") as store:
            assert [info.title for info in store.list_sessions().items] == [tenant]
    assert schema.current(engine) is None
    engine.dispose()


def test_sqlmodel_queries_on_the_tables_of_the_store_return_typed_values(store: Store, engine: sa.Engine) -> None:
    call = ToolCall(id="c", name="n", output={"a": 1.0})
    store.create("k", settings={"thinking": "high"}, messages=[message("hi", tokens=3)])
    stored = store.append_message("k", message({"x": [1]}, role=MessageRole.TOOL, tool_calls=[call]))
    with sqlmodel.Session(engine) as session:
        rows = session.exec(sqlmodel.select(MessageRow).where(MessageRow.role == MessageRole.USER)).all()
        assert [(row.role, row.text, row.seq) for row in rows] == [(MessageRole.USER, "hi", 1)]
        assert rows[0].role is MessageRole.USER
        row = session.exec(sqlmodel.select(MessageRow).where(MessageRow.seq == 2)).one()
        assert (row.content, row.tool_calls) == ({"x": [1]}, [{"id": "c", "name": "n", "output": {"a": 1.0}}])
        assert row.created_at == stored.created_at
        option = orm.selectinload(SessionRow.messages)  # type: ignore[arg-type]
        whole = session.exec(sqlmodel.select(SessionRow).options(option)).one()
        assert whole.settings == {"thinking": "high"}
        assert [each.seq for each in whole.messages] == [1, 2]
        session.expunge_all()
        bare = session.exec(sqlmodel.select(SessionRow)).one()
        with pytest.raises(sa.exc.InvalidRequestError, match="raise"):
            _ = bare.messages


def test_store_reads_rows_that_a_sqlmodel_session_wrote(engine: sa.Engine, store: Store) -> None:
    made = store.create("k", metadata={"a": [1]})
    with sqlmodel.Session(engine) as session:
        row = MessageRow(session_key="k", seq=9, role=MessageRole.USER, content={"b": 1}, created_at=made.created_at)
        session.add(row)
        found = session.get(SessionRow, "k")
        assert found is not None
        assert found.meta == {"a": [1]}
        found.meta = {"a": [2]}
        session.commit()
    assert store.conversation("k").all_messages()[0].content == {"b": 1}
    assert store.conversation("k").info().metadata == {"a": [2]}
