"""Calls that write: a cancelled call is waited for only if it writes."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from support.databases import not_on_a_cluster
from support.every_method import calls_of, prepare

from lango_store import LangoStoreError, Store, create_engine, schema
from lango_store._connections.cancellation import Cancellation

pytestmark = pytest.mark.slow


def read_only(url: str) -> sa.Engine:
    """Return an engine whose database refuses every write."""
    if url.startswith("postgresql"):
        return create_engine(url, connect_args={"options": "-c default_transaction_read_only=on"})
    engine = create_engine(url)
    sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA query_only = ON"))
    return engine


@not_on_a_cluster("a search index is refused on distributed tables")
def test_call_is_marked_as_write_if_and_only_if_it_writes(url: str, tmp_path: Path) -> None:
    """Call every method on a database that refuses writes."""
    cold = tmp_path / "cold.db"
    with Store(url) as store:
        prepare(store, cold)
        schema.enable_search(url)
    engine = read_only(url)
    with Store(engine) as store:
        for kind, methods in calls_of(store, cold).items():
            for name, method_calls in methods.items():
                for method_call in method_calls:
                    call = Cancellation()
                    try:
                        call.run(method_call)
                        refused = False
                    except LangoStoreError:
                        refused = True
                    assert call.cancel() == refused, f"{kind.__name__}.{name}"
    engine.dispose()
