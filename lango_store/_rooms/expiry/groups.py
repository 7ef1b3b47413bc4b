"""The methods of the room."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from lango_store._connections.context import Context
from lango_store._operations import derived_data
from lango_store._operations.session.lists import Filter
from lango_store._rooms.expiry import archiving, batches, policies, purging
from lango_store._rooms.expiry.batches import PurgePolicy
from lango_store._rooms.expiry.values import ExpiryReport
from lango_store._rows.encoding import aware
from lango_store._values.model import SessionInfo
from lango_store._values.session import Session
from lango_store.errors import HOLD, SessionHeld, SessionOnHold


class _Purging:
    _context: Context
    _at_expiry: ClassVar[Sequence[Callable[[Context, datetime | None], Any]]] = ()
    """Functions of other rooms that delete what they no longer keep at a time, by default now."""

    def _clean(self, moment: datetime | None) -> None:
        for clean in self._at_expiry if self._context.owner is None else ():
            clean(self._context, moment)
        derived_data.clean(self._context)


class InStore(_Purging):
    """Adds the members of the room to `Store`."""

    def expire(
        self,
        *,
        now: datetime | None = None,
        grace: timedelta = timedelta(0),
        older_than: timedelta | None = None,
        created_before: datetime | None = None,
        agent_id: str | None = None,
        user_id: str | None = None,
        key_prefix: str | None = None,
        batch_size: int = 500,
        limit: int | None = None,
        archive: str | Path | None = None,
        on_batch: Callable[[ExpiryReport], None] | None = None,
        dry_run: bool = False,
        descendants: bool = False,
    ) -> ExpiryReport:
        """Purge sessions: permanently delete sessions whose TTL has passed.

        Also deletes, in all sessions, the removed messages whose time in `Store(keep_removed=…)` has passed.

        Sessions are purged in batches. Each batch is a separate transaction of about 80 to 200 ms, so an interrupted
        run has purged complete batches. Two kinds of sessions are skipped: those that another transaction has locked,
        and those whose deletion a foreign key of another table or a hold prevents, which the report lists in `held`.

        Args:
            now: Purge sessions that expired at or before this time, an aware datetime. Defaults to the current time.
            grace: Purge expired sessions only when they have been expired for this long. Until then, `touch` revives
                them.
            older_than: Also purge sessions that have been idle (`updated_at`) for at least this long, up to 100 years.
            created_before: Also purge sessions that were created before this time, an aware datetime.
            agent_id: Purge only sessions of this agent.
            user_id: Purge only sessions of this user.
            key_prefix: Purge only sessions whose key starts with this text.
            batch_size: The maximum number of sessions per transaction, 1 to 10,000. Defaults to 500.
            limit: The maximum number of sessions to purge. None (default) purges all.
            archive: A database to copy the sessions to: the path of a SQLite file, which is created if necessary, or
                the URL of a database with the schema of lango_store. Each batch is deleted only after its copy is on
                disk.
            on_batch: A function that is called after each batch with the report so far.
            dry_run: Purge nothing, and report what would be purged. False by default.
            descendants: Also purge all descendants of each purged session, live or expired, in the same transaction.
                The report counts them; `batch_size` and `limit` do not.

        Returns:
            A report with the numbers of purged sessions and messages.

        Raises:
            InvalidFile: `archive` is a SQLite database of another application; nothing was deleted.
            ValueError: `archive` is the database of the store; nothing was deleted.
            DatabaseUnavailable: The database or the archive cannot be reached, or `archive` is not a SQLite file or
                cannot be written; the current batch was not deleted.
        """
        moment = None if now is None else aware(now, "now")
        which = Filter(agent_id=agent_id, user_id=user_id, key_prefix=key_prefix, expired=None)
        policy = PurgePolicy(which, older_than, created_before, descendants=descendants, grace=grace)
        report = purging.purge(self._context, policy, moment, batch_size, limit, archive, on_batch, dry_run)
        if not dry_run:
            self._clean(moment)
        return report

    def hide(self, key: str) -> SessionInfo:
        """Let a session expire now. A purge deletes it later, and until then `touch` revives it.

        `expire(grace=…)` sets how much later. The session keeps its TTL, and `touch` restarts it.

        Args:
            key: The session, which must be live.

        Returns:
            The expired session without its messages.
        """
        return self._context.write(batches.hide, key)

    def delete_where(
        self,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        key_prefix: str | None = None,
        batch_size: int = 500,
        descendants: bool = False,
    ) -> int:
        """Delete all sessions of a user, an agent or a key prefix, live and expired.

        Sessions are deleted in batches, each in a separate transaction. Those that others create at the same time can
        remain. With several filters, a session must match all of them.

        Args:
            user_id: Delete only sessions of this user.
            agent_id: Delete only sessions of this agent.
            key_prefix: Delete only sessions whose key starts with this text.
            batch_size: The maximum number of sessions per transaction, 1 to 10,000. Defaults to 500.
            descendants: Also delete all descendants of each deleted session, whatever their user and agent, in the same
                transaction. `batch_size` does not count them.

        Returns:
            The number of deleted sessions, including descendants.

        Raises:
            ValueError: No filter was given; nothing was deleted.
            SessionHeld: A foreign key of another table refers to at least one of the sessions; all other sessions were
                deleted. `SessionOnHold`, a subclass: at least one has a hold.
        """
        if user_id is None and agent_id is None and not key_prefix:
            raise ValueError(
                "no filter was given, and all sessions would be deleted: give user_id, agent_id or key_prefix"
            )
        which = Filter(agent_id=agent_id, user_id=user_id, key_prefix=key_prefix, expired=None)
        policy = PurgePolicy(which, everything=True, descendants=descendants)
        report = purging.purge(self._context, policy, None, batch_size, existing=True)
        if report.held:
            key, reason = next(iter(report.held.items()))
            hold = reason.removeprefix(HOLD)
            raise SessionHeld(key, reason) if hold == reason else SessionOnHold(key, hold)
        derived_data.clean(self._context)
        return report.sessions

    def restore(
        self, key: str, archive: str | Path, *, ttl: timedelta | None = None, descendants: bool = False
    ) -> Session:
        """Restore a session from an archive. The archive keeps its copy.

        Args:
            key: The session to restore.
            archive: The path or URL that was passed to `expire(archive=…)`.
            ttl: The TTL of the restored session. None (default) means that it never expires.
            descendants: Also restore the descendants of the session, with the same TTL, in the same transaction. If
                the archive got several sessions with this key, only those of the last one are restored.

        Returns:
            The restored session with its window.

        Raises:
            SessionNotFound: The archive has no session with this key.
            SessionExists: The store has a session with this key or a restored descendant's key, live or expired;
                nothing was written.
            InvalidFile: The file does not exist, or is a SQLite database of another application; nothing was written.
            DamagedMessage: A row of the session is damaged in the archive; nothing was written.
            DatabaseUnavailable: The database or the archive cannot be reached, or the file is not a SQLite file;
                nothing was written.
        """
        return archiving.restore(self._context, key, archive, ttl, descendants=descendants)


class InMaintenance(_Purging):
    """Adds the members of the room to `Maintenance`."""

    def apply_policy(
        self,
        path: str | Path,
        *,
        batch_size: int = 500,
        on_batch: Callable[[ExpiryReport], None] | None = None,
        dry_run: bool = False,
    ) -> list[ExpiryReport]:
        """Purge sessions, or put them on hold, by the rules of a retention policy.

        Only the first rule that matches a session applies to it; a rule with `descendants` also purges descendants that
        a later rule matches. Each rule works in batches like `expire`, so an interrupted run can be repeated.

        Args:
            path: The policy, a TOML file.
            batch_size: The maximum number of sessions per transaction, 1 to 10,000. Defaults to 500.
            on_batch: A function that is called after each purged batch with the report of the rule so far.
            dry_run: Change nothing, and report what each rule would do. A descendant that two rules would purge is
                counted by both. False by default.

        Returns:
            A report for each rule, in the order of the file.

        Raises:
            InvalidFile: The file cannot be read, or is not a valid policy; nothing was changed. Or an archive is a
                database of another application; earlier rules were applied.
            InvalidState: A rule sets a hold, and the store is for one user; nothing was changed.
            DatabaseUnavailable: As in `expire`.
        """
        reports = policies.apply(self._context, policies.read_rules(Path(path)), batch_size, on_batch, dry_run=dry_run)
        if not dry_run:
            self._clean(None)
        return reports
