"""Payloads that are missing, and payloads that no message needs."""

from collections.abc import Iterator

import sqlalchemy as sa

from lango_store._operations.binds import PAYLOAD
from lango_store._operations.log import payloads
from lango_store._rooms.stats.payload_sizes import references


def missing(connection: sa.Connection) -> Iterator[tuple[str, int, str]]:
    """Yield key, seq and digest for each message, or version of one, that refers to a missing payload."""
    for key, places in references(connection):
        stored = payloads.stored(connection, key)
        for seq, digest in dict.fromkeys((seq, digest) for seq, digest, _ in places):
            if digest not in stored:
                yield key, seq, digest


def unused(connection: sa.Connection) -> Iterator[tuple[str, int]]:
    """Yield the key of each session with unused payloads, and the number of these payloads."""
    keys = sa.select(PAYLOAD.c.session_key).distinct().order_by(PAYLOAD.c.session_key)
    for key in connection.execute(keys.execution_options(yield_per=1_000)).scalars():
        if digests := payloads.unused(connection, key):
            yield key, len(digests)
