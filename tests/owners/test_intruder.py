"""Every public method, called by one user with the keys, ids, tokens and cursors of another user."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from support.awaiting import awaiting
from support.every_method import CallsByMethod, calls_of, prepare, stable_repr
from support.factories import message

from lango_store import (
    AsyncStore,
    Maintenance,
    Message,
    PendingCompaction,
    Store,
    StoreBudgets,
    Values,
    schema,
)
from lango_store._operations.binds import SESSION, key_column
from lango_store._operations.session_tables import TABLES

REFUSED: Final = {
    (StoreBudgets, "list", 0),
    (StoreBudgets, "list", 1),
    (StoreBudgets, "reset", 0),
    (Store, "shared_values_of", 0),
    (Store, "stats", 0),
    (Maintenance, "examine", 0),
    (Maintenance, "move_payloads", 0),
    (Maintenance, "move_payloads", 1),
    (Values, "get", 1),
    (Values, "set", 1),
    (Values, "delete", 2),
}
"""Calls for the whole database, or for shared values that are not the user's."""

OTHERS: Final = {
    (Store, "for_user", 0): "the store of eve cannot return one for ann",
    (Store, "erase", 0): "it names ann",
    (Store, "erase", 1): "it names ann",
    (Store, "export_user", 0): "it names ann",
    (Store, "restore", 0): "the archive has a session without a user",
}
"""Calls whose outcome in an empty database differs from that of a store for one user."""

TAKEN: Final = (Store, "open", 0)
"""The call that would create a session: it is refused, because the key is taken."""

Outcomes = dict[tuple[type, str, int], str]


def outcome(call: Any) -> str:
    try:
        result = call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return stable_repr(result).replace("user_id='eve'", "user_id=None")


def rows(store: Store) -> dict[str, list[Any]]:
    """Return the rows of all sessions that are not eve's, with the shared values."""
    of_eve = sa.select(SESSION.c.key).where(SESSION.c.user_id == "eve")
    with store.engine.connect() as connection:
        return {
            table.name: sorted(
                map(repr, connection.execute(sa.select(table).where(key_column(table).not_in(of_eve))).all())
            )
            for table in TABLES
        }


@pytest.fixture(params=["sync", "async"])
def either(request: pytest.FixtureRequest, store: Store) -> Iterator[Store]:
    """Yield the store, or an asynchronous one with its interface."""
    if request.param == "sync":
        yield store
    else:
        with awaiting(AsyncStore(store)) as asynchronous:
            yield asynchronous


def outcomes(store: Store, calls: CallsByMethod) -> Outcomes:
    """Make each call, and check that it changes no row of others; what it creates is deleted."""
    found: Outcomes = {}
    before = rows(store)
    for kind, methods in calls.items():
        for name, ways in methods.items():
            for way, call in enumerate(ways):
                found[kind, name, way] = outcome(call)
                store.delete_where(user_id="eve")
                if not before["lango_session"]:
                    for info in [*store.iter_sessions(expired=None)]:
                        store.delete(info.key)
                    store.shared_values("app").delete()
                assert rows(store) == before, (kind, name, way)
    return found


def test_sessions_of_others_cannot_be_told_from_missing_ones(store: Store, either: Store, tmp_path: Path) -> None:
    cold = tmp_path / "cold.db"
    schema.enable_search(store.engine)
    prepare(store, cold)
    store.append_message("k", Message.user("hello"))
    store.shared_values("app").set({"a": 1})
    for info in store.iter_sessions(expired=None):
        store.conversation(info.key).update(user_id="bob")
    bound, everything = (calls_of(each, cold, store) for each in (either.for_user("eve"), either))
    pending = store.conversation("k").turns.begin_compaction()
    assert pending is not None
    of_eve = PendingCompaction(store.for_user("eve")._context, pending._read)
    bound[PendingCompaction]["finish"] = [lambda: of_eve.finish(message("summary"))]
    beside_others = outcomes(store, bound)
    store.delete_where(user_id="bob")
    store.shared_values("app").delete()
    store.erase(scopes=["user:ann"])  # the reservation of a deleted session
    alone = outcomes(store, bound)
    assert beside_others.pop(TAKEN) == "SessionNotFound: no session 'k': create it first, or use open()"
    assert alone.pop(TAKEN) == "handle"
    assert beside_others == alone
    assert {each for each in REFUSED if not alone[each].startswith("InvalidState: this store is for")} == set()
    for each in (*REFUSED, *OTHERS):
        del alone[each]
    plain = outcomes(store, everything)
    assert alone == {each: plain[each] for each in alone}
