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
from lango_store._operations.binds import SESSION, SHARED_VALUE
from lango_store._operations.session import values
from lango_store._operations.session.lists import Filter
from lango_store._rooms.erasure import authors, person, traces
from lango_store._rooms.erasure.person import SHARED, Person
from lango_store._rooms.erasure.values import ErasureReceipt
from lango_store._rooms.expiry import archiving, purging
from lango_store._rooms.expiry.batches import PurgePolicy, Reason
from lango_store.errors import SessionOnHold

OnErase = Callable[[sa.Connection, str], None]

_BATCH: Final = 500


class _Note(NamedTuple):
    """The result of one batch: the deleted rows by table, and the digests of sessions."""

    counts: Counter[str]
    digests: list[str]


@dataclass(frozen=True)
class _Policy(PurgePolicy):
    """All sessions that meet one of several conditions."""

    conditions: Sequence[sa.ColumnElement[bool]] = ()

    def reasons(self, now: datetime) -> list[Reason]:
        return [Reason(each, (SESSION.c.key,)) for each in self.conditions]


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
                receipt.erased[name], receipt.redacted[name] = each.read_together(_count, part)
                continue
            deletes = on_erase if each.engine is context.engine else None
            erased, held = _erase_sessions(each, part, receipt, deletes)
            for scope in part.scopes:
                erased[SHARED_VALUE.name] += each.transact(values.delete, scope, None, SHARED_VALUE)
            protected = each.read_together(_families, [*held])
            receipt.erased[name], receipt.redacted[name] = dict(+erased), dict(_redact(each, part, protected, held))
            receipt.held |= held
            receipt.reasons = dict(Counter(receipt.reasons) + Counter(held.values()))
            receipt.remaining += each.read_together(_remaining, part, protected)
            receipt.remains += traces.remove(each, name)
    receipt.remains += [] if dry_run else [traces.BACKUPS]
    receipt.redacted = {name: counts for name, counts in receipt.redacted.items() if counts}
    receipt.seconds = perf_counter() - started
    return receipt


def _count(connection: sa.Connection, _: Any, someone: Person) -> tuple[Counter[str], Counter[str]]:
    own = someone.sessions(connection)
    counts = person.count(connection, own) + person.count(connection, someone.scopes, SHARED)
    redacted: Counter[str] = Counter()
    for key in someone.elsewhere(connection, own):
        redacted.update(table.name for table, _ in person.rows_by(connection, str(someone.user_id), key))
    return counts, redacted


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

    conditions = context.read_together(lambda connection, _: someone.conditions(connection))
    policy = _Policy(Filter(expired=None), everything=True, descendants=someone.owner is None, conditions=conditions)
    report = purging.purge(context, policy, None, _BATCH, in_batch=in_batch, on_note=on_note)
    return total, report.held


def _redact(context: Context, someone: Person, protected: Sequence[str], held: dict[str, str]) -> Counter[str]:
    """Redact what the person wrote in sessions of others; return the numbers of rows by table. Add holds to `held`."""
    total: Counter[str] = Counter()
    for key in context.read_together(lambda connection, _: someone.elsewhere(connection, protected)):
        try:
            while counts := context.transact(authors.redact, key, str(someone.user_id)):
                total.update(counts)
        except SessionOnHold as error:
            held[key] = error.constraint
    return total
