"""PostgreSQL databases for tests: copies of a migrated template, reused while their schema is unchanged."""

import itertools
import uuid
from typing import Any, Final

import psycopg
import sqlalchemy as sa

from lango_store import schema
from lango_store.tables import FEATURE_TABLE, VERSION_TABLE, Base

_FILLED: Final = [table.name for table in Base.metadata.sorted_tables if table.name != FEATURE_TABLE]
_EMPTY: Final = f"TRUNCATE {', '.join(_FILLED)}".encode()
# Rows of a catalog without the columns that TRUNCATE, VACUUM and ANALYZE change.
_MOVING: Final = "'{relfilenode,relpages,reltuples,relallvisible,relallfrozen,relfrozenxid,relminmxid}'::text[]"
# For other catalogs, the number of rows and the last writing transaction are enough. It takes a third of the time.
_OURS: Final = ("attribute:attrelid", "constraint:oid", "index:indexrelid", "policy:oid", "proc:oid", "trigger:oid")
_WHOLE: Final = ("namespace", "extension", "event_trigger", "default_acl", "publication", "largeobject_metadata")
_LAST: Final = "count(*), ' ', max(xmin::text::bigint)"
_FINGERPRINT: Final = " UNION ALL ".join(
    [
        f"SELECT (to_jsonb(c) - {_MOVING})::text FROM pg_class c WHERE oid >= 16384",
        *(
            f"SELECT concat('{name} ', {_LAST}) FROM pg_{name} WHERE {oid} >= 16384"
            for name, _, oid in (each.partition(":") for each in _OURS)
        ),
        *(f"SELECT concat('{name} ', {_LAST}) FROM pg_{name}" for name in _WHOLE),
        f"SELECT to_jsonb(c)::text FROM {VERSION_TABLE} c",
        f"SELECT to_jsonb(c)::text FROM {FEATURE_TABLE} c",
        "SELECT count(*)::text FROM pg_statistic WHERE starelid >= 16384",
        "SELECT concat(d.datacl::text, s.setconfig::text) FROM pg_database d "
        "LEFT JOIN pg_db_role_setting s ON s.setdatabase = d.oid WHERE d.datname = current_database()",
    ]
)
# Does the same as pg_terminate_backend(pid, 20000), but checks every millisecond, not ten times a second.
_END_OTHERS: Final = """
DO $$ BEGIN
    FOR n IN 1..20000 LOOP
        PERFORM pg_stat_clear_snapshot();
        PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = '{name}' AND pid <> pg_backend_pid() AND backend_type = 'client backend';
        EXIT WHEN NOT FOUND;
        PERFORM pg_sleep(0.001);
    END LOOP;
END $$
"""
# If there are no connections, this takes a tenth of the time of the query above.
_OTHERS: Final = b"""
SELECT 1 FROM pg_stat_get_activity(NULL) a JOIN pg_database d ON d.oid = a.datid
WHERE d.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
"""
_numbers = itertools.count()


class PostgresDatabases:
    """Creates empty or migrated databases, and reuses them after a test."""

    def __init__(self, administrator: sa.Engine, server_url: sa.URL) -> None:
        self._administrator = administrator
        self._server_url = server_url
        self._run = uuid.uuid4().hex[:10]
        self._made: list[tuple[str, bool]] = []
        self._free: list[str] = []
        self._lasting: list[str] = []
        self._connections: dict[str, psycopg.Connection[Any]] = {}
        self._template: str | None = None
        self._fingerprint: list[Any] = []

    def make(self, *, migrated: bool = True, lasting: bool = False) -> str:
        """Return the URL of a database without rows, migrated or not; a `lasting` one exists until the run ends."""
        name = self._free.pop() if migrated and self._free else self._created(migrated)
        if lasting:
            self._lasting.append(name)
        else:
            self._made.append((name, migrated))
        return self._url(name)

    def take_back(self) -> None:
        """Empty the databases of a test for the next one; drop those with a changed schema."""
        while self._made:
            name, migrated = self._made.pop()
            if migrated and self._emptied(name):
                self._free.append(name)
            else:  # FORCE: a connection that leaked in one test must not fail the next
                self._drop(name)

    def drop_all(self) -> None:
        """Drop the remaining databases."""
        self.take_back()
        for name in [*self._free, *self._lasting, self._template]:
            if name is not None:
                self._drop(name)

    def _created(self, migrated: bool) -> str:
        name = f"t_{self._run}_{next(_numbers)}"
        self._create(name, self._migrated() if migrated else None)
        return name

    def _create(self, name: str, template: str | None) -> None:
        copied = "" if template is None else f"TEMPLATE {template}"
        self._say(f"CREATE DATABASE {name} {copied} STRATEGY FILE_COPY")

    def _migrated(self) -> str:
        if self._template is None:
            self._template = f"t_{self._run}_template"
            self._create(self._template, None)
            self._lay_out(self._url(self._template))
            with self._connected(self._template) as connection:
                self._fingerprint = self._state(connection)
        return self._template

    def _lay_out(self, url: str) -> None:
        """Create the tables of a migrated database."""
        schema.upgrade(url)

    def _emptied(self, name: str) -> bool:
        # All tests use one connection: a new connection would cost the server more than the query.
        try:
            if name not in self._connections:
                self._connections[name] = self._connected(name)
            connection = self._connections[name]
            if connection.execute(_OTHERS).fetchone():
                connection.execute(_END_OTHERS.format(name=name).encode())
            if self._state(connection) != self._fingerprint:
                return False
            connection.execute(_EMPTY)
            return True
        except psycopg.Error:
            return False

    def _drop(self, name: str) -> None:
        self._disconnect(name)
        self._say(_END_OTHERS.format(name=name))
        self._say(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _disconnect(self, name: str) -> None:
        if name in self._connections:
            self._connections.pop(name).close()

    def _connected(self, name: str) -> psycopg.Connection[Any]:
        url = self._server_url.set(database=name, drivername="postgresql")
        return psycopg.connect(url.render_as_string(hide_password=False), autocommit=True)

    def _url(self, name: str) -> str:
        return self._server_url.set(database=name).render_as_string(hide_password=False)

    def _say(self, statement: str) -> None:
        with self._administrator.connect() as connection:
            connection.exec_driver_sql(statement)

    def _state(self, connection: psycopg.Connection[Any]) -> list[Any]:
        """Read the state that a test may have changed and that TRUNCATE does not reset."""
        return sorted(connection.execute(_FINGERPRINT.encode()).fetchall())
