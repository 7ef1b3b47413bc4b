"""The methods of the room."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._rooms.erasure import erasing, exporting
from lango_store._rooms.erasure.exporting import PersonFormat
from lango_store._rooms.erasure.person import Person
from lango_store._rooms.erasure.values import ErasureReceipt
from lango_store._rows.encoding import checked_keys, encode_text
from lango_store.errors import InvalidState, quoted


class InStore:
    """Adds the members of the room to `Store`."""

    _context: Context

    def erase(
        self,
        user_id: str | None = None,
        *,
        archives: Sequence[str | Path] = (),
        scopes: Sequence[str] = (),
        authors: bool = False,
        keys: Sequence[str] = (),
        receipt: ErasureReceipt | None = None,
        digests: bool = False,
        on_erase: Callable[[sa.Connection, str], None] | None = None,
        dry_run: bool = False,
    ) -> ErasureReceipt:
        """Erase a person: delete all sessions of a user, with everything that belongs to them, and more on request.

        Sessions are deleted with their descendants, live and expired, in batches. Each batch is a transaction, so an
        interrupted erasure can be repeated, and its receipt then counts the rest. At the end, the search index and
        SQLite's write-ahead log are cleaned. Sessions that cannot be deleted are listed in the receipt.

        Args:
            user_id: The user. On a store for one user, it may be left out.
            archives: The archives from which the sessions are erased too: paths or URLs as in `expire(archive=…)`.
            scopes: The scopes whose shared values and budgets are deleted, such as `"user:ann"`.
            authors: Also redact what the user wrote in the sessions of others: messages whose `author` is the user,
                also in an inbox, the kept versions of them, and answers to suspensions. This reads all messages.
            keys: Further sessions to erase, such as those without a user.
            receipt: Also erase the sessions whose digests are in this receipt, for example from a restored backup.
            digests: Add the digests of the erased sessions to the receipt.
            on_erase: A function that deletes rows of your own tables. It is called for each session of the store with
                the connection and the key, in the transaction that then deletes the session.
            dry_run: Change nothing, and count the rows that would be erased. False by default.

        Returns:
            The receipt, with the number of rows by database and table.

        Raises:
            ValueError: No user, scope or key is given, the receipt has no digests, or the store is for another user;
                nothing was changed.
            InvalidFile: An archive does not exist, or is a SQLite database of another application; nothing was changed.
            InvalidState: The store belongs to a transaction of the caller, or the store is for one user and the call
                reaches more than the sessions of this user; nothing was changed.
            SessionHeld: More than 10,000 sessions are held by foreign keys of other tables.
        """
        someone = _person(self._context, Person(user_id, keys, scopes, authors, receipt))
        if self._context.in_callers_transaction:
            raise InvalidState("an erasure commits its own transactions: call it outside of a transaction")
        return erasing.erase(
            _whole(self._context), someone, archives, digests=digests, on_erase=on_erase, dry_run=dry_run
        )

    def export_user(
        self,
        user_id: str | None,
        to: BinaryIO,
        *,
        format: PersonFormat = "jsonl",
        archives: Sequence[str | Path] = (),
        scopes: Sequence[str] = (),
        authors: bool = False,
        keys: Sequence[str] = (),
    ) -> dict[str, dict[str, int]]:
        """Export a person: write all rows that `erase` with the same arguments would delete or redact.

        Each database is read in one snapshot. Large strings are written where the message has them. A transient error
        is retried only before the first row of a database is written.

        Args:
            user_id: The user. On a store for one user, it may be None.
            to: A file that was opened for writing bytes.
            format: `"jsonl"` (default) for a line of JSON for each row, or `"html"` for a page that a person can read.
            archives: The archives whose copies of the sessions are exported too.
            scopes: The scopes whose shared values and budgets are exported.
            authors: Also export what the user wrote in the sessions of others. Reads all messages.
            keys: Further sessions to export.

        Returns:
            The numbers of rows by database and table, as in `ErasureReceipt`.

        Raises:
            ValueError: No user, scope or key is given, or the store is for another user.
            InvalidFile: An archive does not exist, or is a SQLite database of another application.
            InvalidState: The store is for one user and the call reaches more than the sessions of this user.
        """
        someone = _person(self._context, Person(user_id, keys, scopes, authors))
        return exporting.export(_whole(self._context), someone, archives, to, format)


def _person(context: Context, someone: Person) -> Person:
    """Check the arguments that name a person, and limit them to the user of a store for one user."""
    user_id, owner = encode_text(someone.user_id, "user_id"), context.owner
    someone = replace(someone, keys=checked_keys(someone.keys), scopes=checked_keys(someone.scopes, "scope"))
    if someone.receipt is not None and (someone.receipt.salt is None or someone.receipt.dry_run):
        raise ValueError("the receipt has no digests of erased sessions: give user_id or keys instead")
    if owner is not None:
        if user_id not in (None, owner):
            raise ValueError(f"user_id={quoted(user_id)}: this store is for user {quoted(owner)}")
        if someone.authors or any(scope != f"user:{owner}" for scope in someone.scopes):
            raise InvalidState("authors and scopes of others: use the store itself, which is not for one user")
        return Person(owner, someone.keys, someone.scopes, receipt=someone.receipt, owner=owner)
    if user_id == "" or not (user_id or someone.keys or someone.scopes or someone.receipt):
        raise ValueError("no person is named: give user_id, keys, scopes or receipt")
    if someone.authors and not user_id:
        raise ValueError("authors=True needs user_id, the author of the messages")
    return someone


def _whole(context: Context) -> Context:
    """Return the context of the whole database."""
    if context.owner is None:
        return context
    whole = copy.copy(context)
    whole.__class__, whole.owner = Context, None
    return whole
