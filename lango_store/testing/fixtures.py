"""Fixtures for pytest. Activate them in `conftest.py`: `pytest_plugins = ["lango_store.testing.fixtures"]`.

- `lango_store` is a `Store` on an empty, migrated database.
- `make_lango_store` creates further stores, each on a new database, and accepts the options of `Store`.
- `lango_clock` is the clock of these stores.

Each database is a temporary SQLite file. If the environment variable LANGO_STORE_TEST_POSTGRES contains the URL of a
PostgreSQL server, each test also runs on PostgreSQL, in a temporary schema.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from lango_store import create_engine, schema
from lango_store.store import Store
from lango_store.testing import Clock

_POSTGRES: Final = os.environ.get("LANGO_STORE_TEST_POSTGRES")

MakeLangoStore = Callable[..., Store]
"""A function that creates a store on an empty database. It takes the options of `Store`."""


@pytest.fixture
def lango_clock() -> Clock:
    """Return the clock of the stores. Its time changes only when the test moves it."""
    return Clock()


@pytest.fixture(params=["sqlite", *(["postgresql"] if _POSTGRES else [])])
def make_lango_store(request: pytest.FixtureRequest, tmp_path: Path, lango_clock: Clock) -> Iterator[MakeLangoStore]:
    """Return a function that creates stores, each on an empty database, which is removed after the test."""
    with ExitStack() as after:

        def make(**options: Any) -> Store:
            name = f"lango_{uuid.uuid4().hex}"
            if request.param == "sqlite":
                url = sa.make_url(f"sqlite:///{tmp_path / name}.db")
            else:
                url = after.enter_context(_Schema(str(_POSTGRES), name)).url
            schema.upgrade(url)  # now, so that an AsyncStore on the same engine finds the tables
            store = Store(url, **{"clock": lango_clock, **options})
            after.callback(store.close)
            return store

        yield make


@pytest.fixture
def lango_store(make_lango_store: MakeLangoStore) -> Store:
    """Return a store on an empty database."""
    return make_lango_store()


class _Schema:
    """A temporary schema of a PostgreSQL database."""

    def __init__(self, server: str, name: str) -> None:
        self._engine = create_engine(server, pool_size=1)
        self._name = name
        options = self._engine.url.query.get("options", ())
        options = options if isinstance(options, str) else " ".join(options)
        self.url = self._engine.url.update_query_dict({"options": f"{options} -csearch_path={name}".strip()})

    def __enter__(self) -> _Schema:
        self._execute(f"CREATE SCHEMA {self._name}")
        return self

    def __exit__(self, *_: object) -> None:
        self._execute(f"DROP SCHEMA {self._name} CASCADE")
        self._engine.dispose()

    def _execute(self, statement: str) -> None:
        with self._engine.begin() as connection:
            connection.exec_driver_sql(statement)
