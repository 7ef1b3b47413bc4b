"""The page cache of connections to SQLite: larger than one long session, unless the engine is the application's."""

import sqlalchemy as sa
from support.databases import MakeDatabase

from lango_store import Store
from lango_store._engine.engine import PAGE_CACHE


def cache_size(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return int(connection.exec_driver_sql("PRAGMA cache_size").scalar_one())


def test_connections_of_a_store_cache_a_long_session(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        assert cache_size(store.engine) == -PAGE_CACHE


def test_page_cache_of_an_applications_engine_is_not_changed(make_sqlite: MakeDatabase) -> None:
    engine = sa.create_engine(make_sqlite())
    sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    with Store(engine) as store:
        store.create("k")
        assert cache_size(store.engine) == -2_000
    engine.dispose()
