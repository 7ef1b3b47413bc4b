"""The state of the search index: check it, and index queued changes."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

import sqlalchemy as sa

from lango_store._operations.binds import MESSAGE
from lango_store._operations.pace import Pace
from lango_store._parts.checks import Check, Fault
from lango_store._rooms.search.errors import SearchUnavailable
from lango_store._rooms.search.hits import texts_of
from lango_store._rooms.search.index import QUEUE, REBUILD
from lango_store._rooms.search.indexes import index_of
from lango_store._rooms.search.query import parse_query
from lango_store._rooms.search.values import SearchStatus
from lango_store._values.model import MessageRole

_SAMPLE: Final = 50
_LONGEST: Final = 100
_PAIR: Final = re.compile("[\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5]{2}")  # letters for every database


def check_usable(connection: sa.Connection) -> None:
    """Raise `SearchUnavailable` if the index or a part of it is missing."""
    index = index_of(connection)
    if (fault := index.fault(connection)) is None:
        return
    if not index.exists(connection):
        raise SearchUnavailable("the store has no search index: run `lango-store search enable`")
    raise SearchUnavailable(f"the search index cannot be used: {fault}")


def drain(
    transaction: Callable[[], AbstractContextManager[sa.Connection]],
    number: int,
    pace: Pace,
    on_batch: Callable[[int], object] = lambda done: None,
) -> None:
    """Index the newest `number` changes of the queue, each batch in a separate transaction."""
    done = 0
    while done < number:
        with pace.batch(), transaction() as connection:
            batch = index_of(connection).drain(connection, min(number - done, pace.rows))
        if not batch:
            return
        done += batch
        on_batch(done)


def status(connection: sa.Connection) -> SearchStatus:
    """Return the state of the index."""
    index = index_of(connection)
    fault = index.fault(connection)
    if fault is not None:
        return SearchStatus(state="unusable", reason=fault) if index.exists(connection) else SearchStatus()
    try:
        with connection.begin_nested():
            indexed, waiting = index.indexed(connection), index.queued(connection)
    except sa.exc.DBAPIError as error:
        return SearchStatus(state="unusable", reason=_unreadable(connection, error))
    return SearchStatus(state="ready", indexed=indexed, waiting=waiting)


def _faults(connection: sa.Connection) -> Iterator[Fault]:
    """Yield the faults of the index.

    Faults are an unusable index, messages without an entry and entries without a message
    (unless queued), and messages of a random sample that the index does not find.
    """
    for fault in _described_faults(connection):
        detail, _, remedy = fault.rpartition(": ")
        yield "lango_search", detail, remedy


INDEX_CHECK: Final = Check("search index", _faults)


def _described_faults(connection: sa.Connection) -> list[str]:
    index = index_of(connection)
    if (fault := index.fault(connection)) is not None:
        return [fault] if index.exists(connection) else []
    try:
        with connection.begin_nested():
            missing, extra = index.differences(connection)
            missed = _missed(connection)
    except sa.exc.DBAPIError as error:
        return [_unreadable(connection, error)]
    counts = {"are not indexed": missing, "are indexed and not there": extra, "were tried and not found": missed}
    return [f"{number:,} messages {what}: {REBUILD}" for what, number in counts.items() if number]


def _unreadable(connection: sa.Connection, error: sa.exc.DBAPIError) -> str:
    """Return a description of a damaged index; raise the error again if it has another cause."""
    if error.orig is None or not index_of(connection).is_damage(error.orig):
        raise error
    return f"it cannot be read ({error.orig}): {REBUILD}"


def _missed(connection: sa.Connection) -> int:
    """Count the messages of a sample that the index does not find by a pair of characters or their longest word."""
    index = index_of(connection)
    not_queued = sa.text(f"({index.message_id_columns}) NOT IN (SELECT {index.id_columns} FROM {QUEUE})")
    query = sa.select(MESSAGE.c.session_key, MESSAGE.c.seq).where(MESSAGE.c.role != MessageRole.RECORD, not_queued)
    sample = connection.execute(query.order_by(sa.func.random()).limit(_SAMPLE))
    missed = 0
    for message_key, parts in texts_of(connection, [(key, seq) for key, seq in sample]).items():
        # Only ASCII words and pairs: databases split other words differently. Only short words: a query cuts very long
        # words. First a pair, which an index that was filled by an earlier release does not have.
        pair = next((match[0] for text in parts if (match := _PAIR.search(text))), "")
        words = (word for text in parts for word in text.split() if len(word) <= _LONGEST)
        if word := pair or max((word for word in words if word.isascii() and word.isalnum()), key=len, default=""):
            source, message, _ = index.matches(parse_query(word))
            lookup = sa.select(sa.literal(1)).select_from(source)
            lookup = lookup.where(sa.tuple_(message.c.session_key, message.c.seq) == message_key)
            missed += connection.execute(lookup).first() is None
    return missed
