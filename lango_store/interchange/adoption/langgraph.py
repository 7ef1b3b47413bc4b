"""Threads of LangGraph: `SqliteSaver` and `PostgresSaver`, also the asynchronous ones.

LangGraph's own saver reads a thread, and `LangoSaver` stores it, so both packages must be installed.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from lango_store.interchange.adoption.source import (
    Damaged,
    Database,
    Original,
    Row,
    Shared,
    adapter,
    converted,
    escaped,
    text_of,
)

NAME: Final = "langgraph"

_ID: Final = frozenset({"thread_id", "checkpoint_ns", "checkpoint_id"})
_CHECKPOINT: Final = _ID | {"parent_checkpoint_id", "type", "checkpoint", "metadata"}
_WRITE: Final = _ID | {"task_id", "task_path", "idx", "channel", "type", "value", "blob"}


def tables(database: Database) -> list[str]:
    """Return the table of checkpoints if the database has the tables of a saver."""
    has_writes = not database.tables.keys().isdisjoint({"writes", "checkpoint_writes"})
    return ["checkpoints"] if has_writes and database.tables.get("checkpoints", set()) >= _CHECKPOINT else []


def columns(database: Database) -> dict[str, frozenset[str]]:
    """Return the columns that are read."""
    return {
        "checkpoints": _CHECKPOINT,
        "writes": _WRITE,
        "checkpoint_writes": _WRITE,
        "checkpoint_blobs": frozenset({"thread_id", "checkpoint_ns", "channel", "version", "type", "blob"}),
        "checkpoint_migrations": frozenset(),
    }


def shared(database: Database) -> Iterator[Shared | Damaged]:
    """Yield nothing: threads have no shared values."""
    return iter(())


def sessions(database: Database, tables: Sequence[str], prefix: str) -> Iterator[Original | Damaged]:
    """Yield the threads."""
    stored = adapter("langgraph.stored", NAME)
    table = "checkpoint_writes" if "checkpoint_writes" in database.tables else "writes"
    has_paths = "task_path" in database.tables[table]
    saver = stored.open_saver(database.connection, has_paths=has_paths)
    checkpoints = "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = :id ORDER BY checkpoint_id"
    writes = f"SELECT DISTINCT task_id, task_path FROM {table} WHERE thread_id = :id"

    def convert(row: Row) -> Iterator[Original]:
        id = text_of(row["thread_id"])
        ids = [(each["checkpoint_ns"], each["checkpoint_id"]) for each in database.rows(checkpoints, id=id)]
        paths = {each["task_id"]: each["task_path"] for each in database.rows(writes, id=id)} if has_paths else {}
        thread = stored.Thread(id, prefix, saver, ids, paths)
        yield Original(prefix + escaped(id), "checkpoints", adopt=partial(stored.adopt, thread))

    rows = database.rows("SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id")
    yield from converted("checkpoints", rows, ["thread_id"], convert)
