"""A session with a turn in progress, drafts and an inbox, and checks of its copy in another store."""

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from support.factories import contents, message

from lango_store import Draft, Message, Store
from lango_store._operations.binds import SESSION

LATER = datetime(2031, 2, 3, 4, 5, 6, 7, tzinfo=UTC)
TEXT = "NUL \0, lone surrogate \ud83d"
"""A text that databases cannot store as text."""

Waiting = tuple[list[Draft], list[Message]]


def stream_and_enqueue(store: Store) -> Waiting:
    """Create a session `k` with the drafts of a lost and of a running turn, and return its drafts and its inbox."""
    conversation = store.open("k")
    lost = conversation.turn("lost").begin()
    lost.write("half of ")
    lost.abandon()
    running = conversation.turn("running \N{SNOWMAN}", flush=timedelta(0)).begin()
    for piece in (TEXT, "and ", TEXT):
        running.write(piece)
    conversation.inbox.put(message(TEXT, author="ann", tokens=3, extra={"x": TEXT}))
    conversation.inbox.put(message({"a": [TEXT, None, 1.0]}, id="m-1", sent=[TEXT]), at=LATER)
    return conversation.drafts.list(), conversation.inbox.list()


def assert_waiting(store: Store, stored: Waiting) -> None:
    """Check that a copy of the session has the same drafts, inbox and interrupted turn, but no lease."""
    conversation = store.conversation("k")
    assert (conversation.drafts.list(), conversation.inbox.list()) == stored
    assert [each.due_at for each in conversation.inbox.list()] == [None, LATER]
    assert [draft.text for draft in stored[0]] == ["half of ", f"{TEXT}and {TEXT}"]
    assert contents(stored[1]) == [TEXT, {"a": [TEXT, None, 1.0]}]
    assert lease_of(store) == (None, "running \N{SNOWMAN}", None)
    assert conversation.turns.in_progress() is None


def lease_of(store: Store) -> Any:
    """Read the lease columns of the session."""
    with store.engine.connect() as connection:
        columns = (SESSION.c.lease_token, SESSION.c.lease_turn, SESSION.c.lease_until)
        return tuple(connection.execute(sa.select(*columns)).one())
