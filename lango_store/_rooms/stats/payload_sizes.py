"""References of all sessions to payloads, and their sizes."""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

import sqlalchemy as sa

from lango_store._operations.log import payloads
from lango_store._operations.session_tables import MESSAGES
from lango_store._rows.columns import as_stored


def references(connection: sa.Connection) -> Iterator[tuple[str, list[tuple[int, str, int]]]]:
    """Yield the key of each session, and what its messages and their versions refer to: seq, digest and bytes."""
    parts = [
        sa.select(table.c.session_key, table.c.seq, as_stored(listing)).where(listing.is_not(None))
        for table in MESSAGES
        for listing in (table.c.payloads,)
    ]
    rows = connection.execute(sa.union_all(*parts).order_by("session_key").execution_options(yield_per=1_000))
    for key, listings in groupby(rows, key=itemgetter(0)):
        yield key, [(seq, *each[:2]) for _, seq, listing in listings for each in payloads.references_of(listing)]


def sum_up(connection: sa.Connection) -> tuple[int, int]:
    """Return the bytes of all payloads, and the bytes that they would need without deduplication."""
    stored = total = 0
    for _, places in references(connection):
        stored += sum({digest: size for _, digest, size in places}.values())
        total += sum(size for *_, size in places)
    return stored, total
