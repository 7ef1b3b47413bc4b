"""How our tables are spread over the nodes of a Citus cluster: each by the first column of its primary key, all alike.

A session, its turns, its messages and its values are rows of one node then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from lango_store.errors import LangoStoreError
from lango_store.tables import VERSION_TABLE, Base

_TABLES: Final = Base.metadata.sorted_tables
_COLUMNS: Final = {table.name: next(iter(table.primary_key.columns)).name for table in _TABLES}
"""What each of our tables is distributed by."""

_FIRST: Final = _TABLES[0].name
"""The table that the others are placed with."""

_BY_HASH, _ON_EVERY_NODE, _ON_ONE_NODE, _OF_THE_COORDINATOR = "h", "t", "s", 0

_IN_SCHEMA: Final = "c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
_IS_OURS: Final = f"c.relname = ANY(:ours) AND {_IN_SCHEMA}"

_DISTRIBUTE: Final = "lango-store db distribute"
_UNDISTRIBUTE: Final = "lango-store db undistribute"


@dataclass(frozen=True)
class Step:
    """A statement of a distribution; `table` is the one whose rows it moves, None if it moves none."""

    sql: str
    table: str | None = None
    locks: bool = False
    """Whether it takes locks on several tables, and does nothing else."""


@dataclass(frozen=True)
class _Placement:
    """Where Citus has the rows of a table."""

    method: str
    column: str | None
    colocation: int
    replication: str


class Distribution:
    """What is asked of Citus. Each method takes a connection that sees the schema of our tables only."""

    def reject_worker(self, connection: sa.Connection) -> None:
        """Raise LangoStoreError on a server that changes no schema, with the name of the one that does."""
        if not self._is_there(connection):
            return
        query = (
            "SELECT coalesce(n.nodename || ':' || n.nodeport, 'that one') FROM pg_dist_local_group l "
            "LEFT JOIN pg_dist_node n ON n.groupid = 0 WHERE l.groupid <> 0"
        )
        if coordinator := connection.exec_driver_sql(query).scalar():
            raise LangoStoreError(
                "this server is a worker of a Citus cluster, and schemas are changed on the coordinator: "
                f"give the URL of {coordinator}"
            )

    @staticmethod
    def is_of_a_tenant(connection: sa.Connection) -> bool:
        """Return whether Citus keeps the schema as a whole on one node."""
        query = (
            "SELECT true FROM pg_dist_schema JOIN pg_namespace n ON n.oid = schemaid WHERE nspname = current_schema()"
        )
        return bool(connection.exec_driver_sql(query).scalar())

    def nodes(self, connection: sa.Connection) -> int:
        """Count the nodes that take rows."""
        query = "SELECT count(*) FROM pg_dist_node WHERE isactive AND shouldhaveshards AND noderole = 'primary'"
        return int(connection.exec_driver_sql(query).scalar_one())

    def steps(self, connection: sa.Connection) -> list[Step]:
        """Return what is left to do until the tables are distributed; LangoStoreError if something is in the way."""
        self._refuse(connection)
        if self.is_of_a_tenant(connection):
            raise LangoStoreError(
                "this schema is distributed as a whole, and its tables live on one node: they are not distributed by "
                "session as well; `SELECT citus_schema_undistribute(…)` undoes that"
            )
        if not self.nodes(connection):
            raise LangoStoreError(
                "no node of this cluster takes rows: SELECT citus_add_node('worker', 5432), then run this again"
            )
        self._reject_placed_otherwise(connection)
        self._reject_obstacles(connection)
        placements = self._placements(connection)
        steps: list[Step] = []
        for table, column in _COLUMNS.items():
            if table not in placements:
                beside = "none" if table == _FIRST else self._name(connection, _FIRST)
                call = f"create_distributed_table({self._text(connection, table)}, '{column}', colocate_with => "
                steps.append(Step(f"SELECT {call}{_literal(beside)})", table))
        left = set(_COLUMNS) - set(placements) | self._left_behind(connection)
        for table in reversed(_COLUMNS):
            if table in left:  # Citus copies the rows, and leaves them on the coordinator where nobody sees them
                steps.append(
                    Step(f"SELECT truncate_local_data_after_distributing_table({self._text(connection, table)})")
                )
        if VERSION_TABLE not in placements:  # each node is asked for the revision, and a worker has no local tables
            steps.append(Step(f"SELECT create_reference_table({self._text(connection, VERSION_TABLE)})"))
        return [self._lock(connection), *steps] if steps else []

    def steps_back(self, connection: sa.Connection) -> list[Step]:
        """Return what is left to do until no table is distributed; LangoStoreError if something is in the way."""
        self._refuse(connection)
        if self.is_of_a_tenant(connection):
            raise LangoStoreError(
                "this schema is distributed as a whole: `SELECT citus_schema_undistribute(…)` undoes that"
            )
        self._reject_obstacles(connection)
        placements = self._placements(connection)
        steps: list[Step] = []
        moved: set[str] = set()
        for table in _COLUMNS:
            if table in placements and table not in moved:
                call = f"undistribute_table({self._text(connection, table)}, cascade_via_foreign_keys => true)"
                steps.append(Step(f"SELECT {call}", table))
                moved |= _referring_to(table)
        if VERSION_TABLE in placements:
            steps.append(Step(f"SELECT undistribute_table({self._text(connection, VERSION_TABLE)})"))
        return [self._lock(connection), *steps] if steps else []

    def differences(self, connection: sa.Connection) -> Iterator[tuple[str, str]]:
        """Yield where tables are not distributed like the others, each with the next command."""
        if not self._is_there(connection) or self.is_of_a_tenant(connection):
            return
        placements = self._placements(connection)
        if placements.keys().isdisjoint(_COLUMNS):
            return
        for table, other in self._placed_otherwise(connection).items():
            yield f"{table} is {other}", f"run `{_UNDISTRIBUTE}`, then `{_DISTRIBUTE}`"
        for table in [*_COLUMNS, VERSION_TABLE]:
            if table not in placements:
                yield f"{table} is not distributed, and others of our tables are", f"run `{_DISTRIBUTE}`"
        for table in sorted(self._left_behind(connection)):
            yield f"{table} has rows on the coordinator that nobody sees", f"run `{_DISTRIBUTE}`, which frees them"

    # What Citus says

    @staticmethod
    def _is_there(connection: sa.Connection) -> bool:
        return bool(
            connection.exec_driver_sql("SELECT to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL").scalar()
        )

    @staticmethod
    def _placements(connection: sa.Connection) -> dict[str, _Placement]:
        query = (
            "SELECT c.relname::text, p.partmethod::text, column_to_column_name(p.logicalrelid, p.partkey), "
            "p.colocationid, p.repmodel::text FROM pg_dist_partition p JOIN pg_class c ON c.oid = p.logicalrelid "
            f"WHERE c.relname = ANY(:ours) AND {_IN_SCHEMA}"
        )
        rows = connection.execute(sa.text(query), {"ours": [*_COLUMNS, VERSION_TABLE]})
        found = {name: _Placement(*placement) for name, *placement in rows}
        # A table that Citus knows of, and that is the coordinator's own all the same, is not distributed.
        of_its_own = (_ON_ONE_NODE, _OF_THE_COORDINATOR)
        return {name: each for name, each in found.items() if (each.replication, each.colocation) != of_its_own}

    def _placed_otherwise(self, connection: sa.Connection) -> dict[str, str]:
        """Return how tables are distributed that are distributed in another way than they should be."""
        placements = self._placements(connection)
        beside = placements[_FIRST].colocation if _FIRST in placements else None
        otherwise: dict[str, str] = {}
        for table, column in _COLUMNS.items():
            found = placements.get(table)
            if found is None:
                continue
            if found.method != _BY_HASH:
                otherwise[table] = f"not distributed by hash of {column}"
            elif found.column != column:
                otherwise[table] = f"distributed by {found.column}, not by {column}"
            elif found.colocation != beside:
                otherwise[table] = f"not colocated with {_FIRST}"
        if VERSION_TABLE in placements and placements[VERSION_TABLE].replication != _ON_EVERY_NODE:
            otherwise[VERSION_TABLE] = "not a reference table"
        return otherwise

    @staticmethod
    def _left_behind(connection: sa.Connection) -> set[str]:
        query = (
            "SELECT c.relname::text FROM pg_class c JOIN pg_dist_partition p ON p.logicalrelid = c.oid "
            f"WHERE {_IS_OURS} AND p.partmethod = '{_BY_HASH}' AND pg_relation_size(c.oid) > 0"
        )
        return set(connection.execute(sa.text(query), {"ours": list(_COLUMNS)}).scalars())

    # What is in the way

    def _refuse(self, connection: sa.Connection) -> None:
        if not self._is_there(connection):
            raise LangoStoreError(
                "Citus is not in this database: on each server CREATE EXTENSION citus, then here "
                "SELECT citus_set_coordinator_host('this server') and SELECT citus_add_node('worker', 5432)"
            )
        query = f"SELECT c.relname::text FROM pg_class c WHERE {_IS_OURS} AND NOT pg_has_role(c.relowner, 'USAGE')"
        others = connection.execute(sa.text(query), {"ours": list(_COLUMNS)}).scalars().all()
        if others:
            raise LangoStoreError(
                f"the role of this URL does not own {', '.join(sorted(others))}: give the URL of the role that does"
            )

    def _reject_placed_otherwise(self, connection: sa.Connection) -> None:
        for table, other in self._placed_otherwise(connection).items():
            raise LangoStoreError(f"{table} is {other}: run `{_UNDISTRIBUTE}`, then `{_DISTRIBUTE}`")

    def _reject_obstacles(self, connection: sa.Connection) -> None:
        found = list(self._obstacles(connection))
        if found:
            raise LangoStoreError("; ".join(found))

    @staticmethod
    def _obstacles(connection: sa.Connection) -> Iterator[str]:
        def pairs(query: str) -> Any:
            return connection.execute(sa.text(f"{query} ORDER BY 1, 2"), {"ours": list(_COLUMNS)})

        on_ours = f"JOIN pg_class c ON c.oid = {{}} WHERE {_IS_OURS}"
        for table, name in pairs(
            f"SELECT c.relname, t.tgname FROM pg_trigger t {on_ours.format('t.tgrelid')} AND NOT t.tgisinternal"
        ):
            yield f"trigger {name} on {table} would not be run on a cluster: DROP TRIGGER {name} ON {table}"
        for table, name in pairs(f"SELECT c.relname, r.rulename FROM pg_rewrite r {on_ours.format('r.ev_class')}"):
            yield f"rule {name} on {table} is not followed on a cluster, and can crash it: DROP RULE {name} ON {table}"
        for table, name in pairs(
            f"SELECT c.relname, p.polname FROM pg_policy p {on_ours.format('p.polrelid')} "
            "AND concat(p.polqual::text, p.polwithcheck::text) LIKE '%{SUBLINK%'"
        ):
            yield f"policy {name} on {table} holds a query, which a cluster refuses: write it without, or drop it"
        foreign = (
            "SELECT k.conrelid::regclass::text, k.conname FROM pg_constraint k WHERE k.contype = 'f' AND "
            f"(SELECT count(*) FROM pg_class c WHERE c.oid IN (k.conrelid, k.confrelid) AND {_IS_OURS}) = 1"
        )
        for table, name in pairs(foreign):
            drop = f"ALTER TABLE {table} DROP CONSTRAINT {name}"
            yield f"foreign key {name} of {table} is between our tables and others: {drop}"

    # What is written

    def _lock(self, connection: sa.Connection) -> Step:
        # All of them at once, and the strongest: what grows later meets those who have read and then write.
        names = ", ".join(self._name(connection, table) for table in _COLUMNS)
        return Step(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE", locks=True)

    def _text(self, connection: sa.Connection, table: str) -> str:
        return _literal(self._name(connection, table))

    @staticmethod
    def _name(connection: sa.Connection, table: str) -> str:
        schema = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
        return f"{schema}.{table}"


def _referring_to(table: str) -> set[str]:
    """Return the names of the tables with a foreign key to this one."""
    return {
        each.name for each in _TABLES if any(key.referred_table.name == table for key in each.foreign_key_constraints)
    }


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
