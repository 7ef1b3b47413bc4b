"""Test databases on a Citus cluster; the tables of a migrated one are distributed."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import psycopg
import sqlalchemy as sa
from support.postgres_databases import PostgresDatabases

from lango_store import schema

_NODES: Final = """
SELECT nodename, nodeport FROM pg_dist_node WHERE noderole = 'primary' AND groupid <> 0 AND isactive
"""
# Also ends the maintenance daemon, which would prevent copies of the database.
_END_ALL: Final = """
SELECT count(pg_terminate_backend(pid, 20000)) FROM pg_stat_activity
WHERE datname = '{name}' AND pid <> pg_backend_pid()
"""
_PLACEMENT: Final = "SELECT concat_ws(' ', logicalrelid, partkey, colocationid, repmodel) FROM pg_dist_partition"


class CitusDatabases(PostgresDatabases):
    """Creates distributed databases on the nodes of the administrator's cluster."""

    def __init__(self, administrator: sa.Engine, server_url: sa.URL) -> None:
        super().__init__(administrator, server_url)
        with administrator.connect() as connection:
            workers = [server_url.set(host=host, port=port) for host, port in connection.exec_driver_sql(_NODES)]
        self._nodes = [server_url, *workers]
        self._on_nodes = [self._connect(url) for url in self._nodes]
        self._workers = [(url.host, url.port) for url in workers]
        self._threads = ThreadPoolExecutor(len(self._nodes))
        self._bare: str | None = None

    def drop_all(self) -> None:
        super().drop_all()
        if self._bare is not None:
            self._drop(self._bare)
        self._threads.shutdown()
        for node in self._on_nodes:
            node.close()

    def _create(self, name: str, template: str | None) -> None:
        if template is None:
            template = self._bare = self._bare or self._cluster(f"{name}_bare")
        self._say(f"ALTER DATABASE {template} ALLOW_CONNECTIONS false")  # new connections would prevent the copy
        self._say(_END_ALL.format(name=template))
        super()._create(name, template)

    def _cluster(self, name: str) -> str:
        """Create a template: a distributed database without tables."""
        self._say(f"CREATE DATABASE {name}")
        own = self._server_url.set(database=name)
        for node in (own, *(own.set(host=host, port=port) for host, port in self._workers)):
            with self._connect(node) as connection:
                connection.execute("CREATE EXTENSION citus")
        with self._connect(own) as connection:
            connection.execute("SELECT citus_set_coordinator_host(%s, %s)", [own.host, own.port])
            for worker in self._workers:
                connection.execute("SELECT citus_add_node(%s, %s)", worker)
        return name

    def _lay_out(self, url: str) -> None:
        super()._lay_out(url)
        schema.distribute(url)

    def _say(self, statement: str) -> None:
        list(self._threads.map(lambda number: self._say_on(number, statement), range(len(self._nodes))))

    def _drop(self, name: str) -> None:
        # On the coordinator first, because its background processes would connect to the workers' databases again. They
        # may also take longer to end than the five seconds for which DROP DATABASE waits.
        self._disconnect(name)
        for number in range(len(self._nodes)):
            for tries_left in (2, 1, 0):
                try:
                    self._say_on(number, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
                    break
                except psycopg.errors.ObjectInUse:
                    if not tries_left:
                        raise

    def _say_on(self, number: int, statement: str) -> None:
        for _ in range(2):  # a server may have crashed: the first use of a connection then closes it
            if self._on_nodes[number].closed:
                self._on_nodes[number] = self._connect(self._nodes[number])
            try:
                self._on_nodes[number].execute(statement.encode())
            except psycopg.OperationalError:
                if not self._on_nodes[number].closed:
                    raise
            else:
                return

    def _state(self, connection: psycopg.Connection[Any]) -> list[Any]:
        return sorted([*super()._state(connection), *connection.execute(_PLACEMENT.encode())])

    @staticmethod
    def _connect(url: sa.URL) -> psycopg.Connection[Any]:
        text = url.set(drivername="postgresql").render_as_string(hide_password=False)
        return psycopg.connect(text, autocommit=True)
