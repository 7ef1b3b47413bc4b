"""Which calls count as writes, and so are waited for when they are cancelled."""

from pathlib import Path

import sqlalchemy as sa
from support.databases import not_on_a_cluster
from support.every_verb import calls_of, prepare

from lango_store import LangoStoreError, Store, create_engine, schema
from lango_store._connections.cancellation import Cancellation


def read_only(url: str) -> sa.Engine:
    """Return an engine whose database refuses every write."""
    if url.startswith("postgresql"):
        return create_engine(url, connect_args={"options": "-c default_transaction_read_only=on"})
    engine = create_engine(url)
    sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA query_only = ON"))
    return engine


@not_on_a_cluster("a search index is refused on distributed tables")
def test_a_call_tells_that_it_writes_if_the_database_would_be_written(url: str, tmp_path: Path) -> None:
    """Every verb is called, on a database that refuses writes."""
    cold = tmp_path / "cold.db"
    with Store(url) as store:
        prepare(store, cold)
        schema.enable_search(url)
    engine = read_only(url)
    with Store(engine) as store:
        for kind, verbs in calls_of(store, cold).items():
            for name, ways in verbs.items():
                for way in ways:
                    call = Cancellation()
                    try:
                        call.run(way)
                        refused = False
                    except LangoStoreError:
                        refused = True
                    assert call.cancel() == refused, f"{kind.__name__}.{name}"
    engine.dispose()
