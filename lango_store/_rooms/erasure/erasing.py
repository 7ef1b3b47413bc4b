"""Erase a person from a store and its archives."""

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._operations.binds import SESSION
from lango_store._operations.paging import chunks
from lango_store._operations.session import values
from lango_store._operations.session.lists import Filter
from lango_store._operations.session_tables import SHARED
from lango_store._rooms.erasure import authors, person, traces
from lango_store._rooms.erasure.person import Person
from lango_store._rooms.erasure.values import ErasureReceipt
from lango_store._rooms.expiry import archiving, purging
from lango_store._rooms.expiry.batches import PurgePolicy, Reason
from lango_store.errors import SessionOnHold

OnErase = Callable[[sa.Connection, str], None]

_Counts = tuple[Counter[str], Counter[str], dict[str, str]]
"""The numbers of erased and of redacted rows by table, and the sessions that are held, each with the reason."""

_BATCH: Final = 500


class _Note(NamedTuple):
    """The result of one batch: the deleted rows by table, and the digests of sessions."""

    counts: Counter[str]
    digests: list[str]


@dataclass(frozen=True)
class _Policy(PurgePolicy):
    """All sessions that meet one of several conditions, the oldest first."""

    conditions: Sequence[sa.ColumnElement[bool]] = ()

    def reasons(self, now: datetime) -> list[Reason]:
        return [Reason(each, (SESSION.c.created_at, SESSION.c.key)) for each in self.conditions]


@contextmanager
def databases(
    context: Context, someone: Person, archives: Sequence[str | Path]
) -> Iterator[dict[str, tuple[Context, Person]]]:
    """Open all archives, and return the databases of a person by name, the store first."""
    with ExitStack() as stack:
        found = {"store": (context.on_primary(), someone)}
        for number, archive in enumerate(archives, 1):
            cold = stack.enter_context(archiving.opened(context, archive))
            found[f"archive {number}"] = cold, someone.in_archive()
        yield found


def erase(
    context: Context,
    someone: Person,
    archives: Sequence[str | Path],
    *,
    digests: bool,
    on_erase: OnErase | None,
    dry_run: bool,
) -> ErasureReceipt:
    """Erase a person, or only count the rows; return a receipt."""
    started = perf_counter()
    now = context.on_primary().read_together(lambda connection, _: context.now(connection))
    receipt = ErasureReceipt(at=now, dry_run=dry_run, salt=secrets.token_hex(16) if digests else None)
    with databases(context, someone, archives) as found:
        for name, (each, part) in found.items():
            if dry_run:
                erased, redacted, held = each.read_together(_count, part)
            else:
                erased, redacted, held = _erase(each, part, name, receipt, on_erase if name == "store" else None)
            receipt.erased[name], receipt.redacted[name] = dict(+erased), dict(redacted)
            receipt.held |= held
            receipt.reasons = dict(Counter(receipt.reasons) + Counter(held.values()))
    receipt.remains += [] if dry_run else [traces.BACKUPS]
    receipt.redacted = {name: counts for name, counts in receipt.redacted.items() if counts}
    receipt.seconds = perf_counter() - started
    return receipt


def _count(connection: sa.Connection, _: Any, someone: Person) -> _Counts:
    own = someone.sessions(connection)
    elsewhere = someone.elsewhere(connection, own)
    held = person.holds(connection, [*own, *elsewhere])
    redacted: Counter[str] = Counter()
    for key in elsewhere:
        if key not in held:
            redacted.update(table.name for table, _ in person.rows_by(connection, str(someone.user_id), key))
    return person.count(connection, [key for key in own if key not in held], someone.scopes), redacted, held


def _erase(context: Context, someone: Person, name: str, receipt: ErasureReceipt, on_erase: OnErase | None) -> _Counts:
    """Erase a person from a database; add to the receipt what is not a number of rows or a hold."""
    erased, held = _erase_sessions(context, someone, receipt, on_erase)
    for scope in someone.scopes:
        for table in SHARED:
            erased[table.name] += context.transact(values.delete, scope, None, table)
    protected = context.read_together(_families, [*held])
    redacted = _redact(context, someone, protected, held)
    receipt.remaining += context.read_together(_remaining, someone, protected)
    receipt.remains += traces.remove(context, name)
    return erased, redacted, held


def _families(connection: sa.Connection, _: Any, keys: Sequence[str]) -> list[str]:
    return person.families(connection, keys)


def _remaining(connection: sa.Connection, _: Any, someone: Person, protected: Sequence[str]) -> int:
    return len({*someone.sessions(connection)}.difference(protected))


def _erase_sessions(
    context: Context, someone: Person, receipt: ErasureReceipt, on_erase: OnErase | None
) -> tuple[Counter[str], dict[str, str]]:
    """Delete the sessions in batches; return the numbers of rows by table, and the sessions that were not deleted."""

    @contextmanager
    def in_batch(connection: sa.Connection, keys: Sequence[str]) -> Iterator[_Note]:
        note = _Note(person.count(connection, keys), [])
        for part in chunks(keys, _BATCH):
            for column in person.HOLDERS:
                connection.execute(sa.delete(column.table).where(column.in_(part)))
        if receipt.salt is not None:
            note.digests.extend(receipt.digest(*each) for each in person.created(connection, keys))
        if on_erase is not None:
            for key in keys:
                on_erase(connection, key)
        yield note

    total: Counter[str] = Counter()

    def on_note(note: _Note) -> None:
        total.update(note.counts)
        receipt.digests.extend(note.digests)

    conditions, limit = context.read_together(
        lambda connection, _: (someone.conditions(connection), len(someone.sessions(connection)))
    )  # without a limit, an erasure would not end while others create sessions
    policy = _Policy(Filter(expired=None), everything=True, descendants=someone.owner is None, conditions=conditions)
    report = purging.purge(context, policy, None, _BATCH, limit, in_batch=in_batch, on_note=on_note)
    return total, report.held


def _redact(context: Context, someone: Person, protected: Sequence[str], held: dict[str, str]) -> Counter[str]:
    """Redact what the person wrote in sessions of others; return the numbers of rows by table. Add holds to `held`."""
    total: Counter[str] = Counter()
    for key in context.read_together(lambda connection, _: someone.elsewhere(connection, protected)):
        try:
            is_full = True
            while is_full:
                counts = context.transact(authors.redact, key, str(someone.user_id))
                total.update(counts)
                is_full = counts.total() >= authors.AT_ONCE
        except SessionOnHold as error:
            held[key] = error.constraint
    return total
