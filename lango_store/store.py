"""The Store: many sessions, and the verbs an agent needs of them, all in one file, where they are looked for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import sqlalchemy as sa
from sqlalchemy import orm

from lango_store._connections.context import IN_ASYNC_SESSIONS, Clock, Context, DefaultTTL, TokenCounter
from lango_store._dialect.statement import Observer
from lango_store._engine.engine import Durability, create_engine
from lango_store._operations import lists, sessions, stats
from lango_store._operations import messages as log
from lango_store._operations import values as named_values
from lango_store._operations.binds import SHARED_VALUE
from lango_store._operations.expiry import Policy
from lango_store._operations.lists import Filter, Filters, Order
from lango_store._operations.search import SearchFilters
from lango_store._operations.sessions import Expected
from lango_store._rows.encoding import aware, checked_key
from lango_store._services import appending, lifecycle, maintenance, searching
from lango_store._values.model import UNSET, Message, SessionChanges, SessionFields, SessionInfo, Unset
from lango_store._values.reports import ExpiryReport, Finding, Page, SearchPage, Stats
from lango_store._values.session import Session
from lango_store.conversation import Conversation
from lango_store.errors import LangoStoreError, SessionHeld

R = TypeVar("R")


class Store:
    """Sessions and messages in SQLite or PostgreSQL.

    `Store(url)` owns its engine and closes it; `Store(engine)` borrows yours and leaves it open. Making a store
    connects to nothing: the first call looks at the schema, and brings it up to date if `migrate` says so.
    `default_ttl` is for new sessions: a timedelta, None for never, or a function of the key. `clock` gives aware
    times; without one PostgreSQL's clock decides, the same for all clients, and on SQLite this machine's.
    `durability="normal"` gives up SQLite's fsync per commit: a power cut may take the last appends, a killed process
    none. `token_counter` counts the tokens of messages that carry no count. `on_statement` is called after each
    statement with its text and how many seconds it took, in the thread that ran it. One store serves all threads.

    With `retry` what fails for a passing reason (a server that is away, a lost connection, a lock) is tried again for
    that long after its first failure, and messages and turns without an id get one, so that nothing is stored twice.
    Never in a transaction of yours, and not what takes something away and may have been done: that is
    `DatabaseUnavailable`. Without it only what other transactions undid (SERIALIZABLE, a deadlock) is, for 30 s.

    `replica` is the URL of a server that follows the first one: sessions, messages, histories and lists are read there,
    as soon as it has what this store wrote last, else from the first.

    Whatever takes a `key` may raise `InvalidKey`, and unless it says otherwise `SessionNotFound` and `SessionExpired`.
    Everything may raise `SchemaOutOfDate`, `UnknownFeature`, `DatabaseUnavailable` and `DatabaseBusy`.
    """

    def __init__(
        self,
        database: str | sa.URL | sa.Engine,
        *,
        migrate: bool = False,
        default_ttl: DefaultTTL = None,
        clock: Clock | None = None,
        durability: Durability = "full",
        token_counter: TokenCounter | None = None,
        on_statement: Observer | None = None,
        retry: timedelta | None = None,
        replica: str | sa.URL | None = None,
    ) -> None:
        owned = isinstance(database, str | sa.URL)
        self._context = Context(
            create_engine(database, durability=durability) if owned else _borrowed(database),  # type: ignore[arg-type]
            owned=owned,
            migrate=migrate,
            default_ttl=default_ttl,
            clock=clock,
            token_counter=token_counter,
            on_statement=on_statement,
            retry=retry,
            replica=None if replica is None else _replica(replica),
        )

    # Life

    @property
    def engine(self) -> sa.Engine:
        """The engine: yours if the store borrowed it."""
        return self._context.engine

    @property
    def context(self) -> Context:
        """The connections and the policy of this store, for packages that are built on it: formats, integrations."""
        return self._context

    def using(self, connection: sa.Connection | orm.Session | orm.scoped_session[Any]) -> Store:
        """Return this store on your own connection or session: what it writes, you commit or roll back.

        In async code: `await session.run_sync(lambda s: store.using(s).append_message(key, message))`.
        """
        return self._bound(self._context.using(connection))

    @contextmanager
    def transaction(self) -> Iterator[Store]:
        """Return this store bound to one transaction, committed when the block ends and rolled back on an error.

        On SQLite the block holds the write lock. Inside `using(connection)` it is a savepoint. Errors of the database
        are raised at once: `transact` runs a function again where that helps.

            with store.transaction() as tx:
                tx.append_message("k", Message.user("Hello"))
                tx.set_values("k", {"step": 1})

        Raises:
            LangoStoreError: The bound store was used after the block.
        """
        with self._context.transaction() as connection, self._bound_to(connection) as store:
            yield store

    @contextmanager
    def snapshot(self) -> Iterator[Store]:
        """Return this store bound to one snapshot: all reads in the block see the database at the same moment.

        Inside `using(connection)` the isolation of that transaction decides.

            with store.snapshot() as view:
                session, values = view.get("k"), view.values("k")

        Raises:
            LangoStoreError: The bound store was used to write, or after the block.
        """
        with self._context.snapshot() as connection, self._bound_to(connection, read_only=True) as store:
            yield store

    @contextmanager
    def _bound_to(self, connection: sa.Connection, *, read_only: bool = False) -> Iterator[Store]:
        is_open = True

        def get_connection() -> sa.Connection:
            if not is_open:
                raise LangoStoreError("this block has ended: begin another one with store.transaction() or snapshot()")
            return connection

        try:
            yield self._bound(self._context.bound(get_connection, read_only=read_only))
        finally:
            is_open = False

    def transact(self, function: Callable[[Store], R]) -> R:
        """Call a function with this store bound to one transaction, commit, and return the function's result.

        The function may run several times: again when the database undid the transaction (a deadlock, a serialization
        failure), and with `retry` when the database could not be reached. It should have no other side effects.

        Args:
            function: Called with the bound store. Whatever it raises rolls the transaction back.

        Returns:
            The result of the last call.

        Raises:
            DatabaseUnavailable: The connection was lost during the commit, so the transaction may have been committed.
        """

        def run() -> R:
            with self.transaction() as tx:
                return function(tx)

        return self._context.trying(run, if_lost=False)

    def position(self) -> str | None:
        """Return up to where the database has written by now, as a text for `at`; None on SQLite, without replicas."""
        return self._context.trying(self._context.position)

    def at(self, position: str | None) -> Store:
        """Return this store for reads that see all that was written up to a `position`, from a replica too.

        It is closed with this one. ValueError for a text that is not a position.
        """
        return self._bound(self._context.at(position))

    def ping(self) -> None:
        """Check that the database answers, that its schema is the one this release needs, and that its tables exist."""
        self._context.ping()

    def close(self) -> None:
        """Close the connections, unless the engine is borrowed; the store can be used no more."""
        self._context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # One session

    def create(
        self,
        key: str | None = None,
        *,
        ttl: timedelta | None | Unset = UNSET,
        messages: Sequence[Message] = (),
        **fields: Unpack[SessionFields],
    ) -> Session:
        """Create a session, with its first messages if there are any; no key means a new UUIDv7.

        `fields` are `agent_id`, `user_id`, `title`, `model`, `settings` and `metadata` (dicts) and `tools` (a list).
        `ttl` left out is the store's default, None is never. Raises `SessionExists` if the key is taken, by an expired
        session too, and `InvalidMessage` for a field or message that cannot be stored; then nothing is written.
        """
        new = appending.new_session(self._context, key, ttl, fields)
        return lifecycle.create(self._context, new, appending.encoded(self._context, messages), own_key=key is None)

    def get(self, key: str, *, expired: bool = False, records: bool = False) -> Session:
        """Load a session and the messages of its window: two statements, if nobody changes the session between them.

        With `expired` an expired session that is not purged yet is looked at too, and stays as it is. With `records`,
        the records that stand between the messages are loaded with them.
        """
        return self._at(key).get(expired=expired, records=records)

    def get_or_create(
        self,
        key: str,
        *,
        ttl: timedelta | None | Unset = UNSET,
        messages: Sequence[Message] = (),
        renew: bool = False,
        **fields: Unpack[SessionFields],
    ) -> Session:
        """Return a session as it is, or create it with `fields` as `create` does; of two callers at once, one does.

        An expired session raises `SessionExpired`, or with `renew` is replaced by a new one in one transaction.
        """
        new = appending.new_session(self._context, key, ttl, fields)
        first = appending.encoded(self._context, messages)
        return lifecycle.find_or_create(self._context, new, first, log.load, renew=renew)

    def open(
        self,
        key: str | None = None,
        *,
        ttl: timedelta | None | Unset = UNSET,
        messages: Sequence[Message] = (),
        renew: bool = False,
        **fields: Unpack[SessionFields],
    ) -> Conversation:
        """Return a handle of a session, created with `fields` as in `create` if there is none; no key means a UUIDv7.

        An expired session raises `SessionExpired`, or with `renew` is replaced by a new one in one transaction.
        """
        new = appending.new_session(self._context, key, ttl, fields)
        first = appending.encoded(self._context, messages)
        if key is None:
            lifecycle.create(self._context, new, first, own_key=True)
        else:
            lifecycle.find_or_create(self._context, new, first, sessions.row_of, renew=renew)
        return self._at(new.key)

    def conversation(self, key: str) -> Conversation:
        """Return a handle of a session without asking the database: its verbs say if the session does not exist."""
        return self._at(checked_key(key))

    def info(self, key: str, *, expired: bool = False) -> SessionInfo:
        """Load a session without its messages: one row; `expired` as in `get`."""
        return self._at(key).info(expired=expired)

    def exists(self, key: str) -> bool:
        """Return whether a live session has this key."""
        return self._context.read(sessions.exists, key)

    def update(
        self,
        key: str,
        *,
        activity: bool = False,
        expect: int | None = None,
        **changes: Unpack[SessionChanges],
    ) -> SessionInfo:
        """Change fields of a session, those of `create`: what is left out stays, None clears, JSON is replaced whole.

        `last_consolidated` is a count of messages; ValueError if it is negative or above `message_count`. `updated_at`
        stays, and with it the session's place in lists and its idle time, unless this counts as `activity`. With
        `expect`, the session's `revision` has to be that, else `Conflict`, and is one more afterwards. `DamagedMessage`
        if another field is damaged: on PostgreSQL, where this is one statement, the change is stored all the same.
        """
        return self._at(key).update(activity=activity, expect=expect, **changes)

    def touch(self, key: str, *, ttl: timedelta | None | Unset = UNSET) -> SessionInfo:
        """Move a session's expiry to `ttl` from now and keep that TTL; None is never, left out is its own.

        Revives a session that has expired and is not purged yet. `updated_at` stays. `DamagedMessage` as in `update`.
        """
        return self._context.write(sessions.touch, key, ttl)

    def delete(self, key: str, *, expect: int | None = None) -> bool:
        """Delete a session, live or expired, and all its messages; False if there was none.

        With `expect`, its `revision` has to be that, else `Conflict`. `SessionHeld` if a row of another table refers to
        it by a foreign key without ON DELETE.
        """
        return lifecycle.delete(self._context, key, Expected(revision=expect))

    # Messages

    def append_message(
        self,
        key: str,
        message: Message,
        *,
        after: int | None = None,
        expect: int | None = None,
        create: bool = False,
        ttl: timedelta | None | Unset = UNSET,
        **fields: Unpack[SessionFields],
    ) -> Message:
        """Append a message to a live session, and return it with its `seq` and `created_at`.

        A message whose `id` is there already is not written again: the stored one comes back, `replayed`. With
        `after`, it is written only if the session's `last_seq` is still that (0 when new), else `Conflict`.
        `expect` is the `revision` that the session must have; it is one higher afterwards. Otherwise `Conflict`.
        With `create` a session that is missing is made with `ttl` and `fields` as `create()` does, in the place of an
        expired one too; they say nothing of a session that is there. An `after` above 0, or `expect`, then is
        `Conflict`: a session made now is at neither.
        `InvalidMessage` for what the database could not give back equal. When this returns, the message is on disk.
        """
        return appending.append(self._context, key, [message], None, after, expect, create, ttl, fields)[0]

    def append_messages(
        self,
        key: str,
        messages: Sequence[Message],
        *,
        after: int | None = None,
        replace_after: int | None = None,
        expect: int | None = None,
        create: bool = False,
        ttl: timedelta | None | Unset = UNSET,
        **fields: Unpack[SessionFields],
    ) -> list[Message]:
        """Append messages to a live session, all or none, and return them in the order handed in.

        Ids, `after` and `create` as in `append_message`. `replace_after` first drops what comes after that
        `seq`, in the same transaction: the way to regenerate an answer. See `Conversation.append_messages`.
        """
        return appending.append(self._context, key, messages, replace_after, after, expect, create, ttl, fields)

    def messages(self, key: str, *, last: int | None = None, records: bool = False) -> list[Message]:
        """Read the window of a session, what a model should see of it, or its last messages.

        With `records`, the records between them too, which count for `last`.
        """
        return self._at(key).messages(last=last, records=records)

    # Values

    def values(self, key: str, prefix: str | None = None) -> dict[str, Any]:
        """Return the values of a session by name, in the order of their names.

        Args:
            key: The session.
            prefix: Return only values whose names begin with this.
        """
        return self._at(key).values(prefix)

    def set_values(self, key: str, values: dict[str, Any]) -> None:
        """Set values of a session by name, all or none; other values stay. They are deleted with the session.

        This changes the session's `revision`, not its `updated_at`.

        Args:
            key: The session.
            values: Any JSON, None too, by name.

        Raises:
            InvalidKey: A name is not 1 to 512 characters of text, or more than 2,600 bytes with the key.
            InvalidValue: A value is not JSON; nothing was written.
        """
        self._at(key).set_values(values)

    def drop_values(self, key: str, names: Sequence[str] | None = None) -> int:
        """Delete values of a session by name, or all of them; return how many there were."""
        return self._at(key).drop_values(names)

    def shared_values(self, scope: str, prefix: str | None = None) -> dict[str, Any]:
        """Return the values of a scope by name, in the order of their names; a new scope has none.

        A scope is any text that sessions agree on, such as `user:ann`. It has nothing to do with session keys.

        Args:
            scope: The scope.
            prefix: Return only values whose names begin with this.
        """
        return self._context.read(named_values.read, scope, prefix, SHARED_VALUE)

    def set_shared_values(self, scope: str, values: dict[str, Any]) -> None:
        """Set values of a scope by name, all or none; other values stay. No session takes them along when it goes.

        Args:
            scope: The scope.
            values: Any JSON, None too, by name.

        Raises:
            InvalidKey: A scope or name is not 1 to 512 characters, or they have more than 2,600 bytes.
            InvalidValue: A value is not JSON; nothing was written.
        """
        encoded = named_values.encode_values(scope, values, SHARED_VALUE)
        self._context.write(named_values.write, scope, encoded, SHARED_VALUE)

    def drop_shared_values(self, scope: str, names: Sequence[str] | None = None) -> int:
        """Delete values of a scope by name, or all of them; return how many there were."""
        return self._context.remove(named_values.drop, scope, names, SHARED_VALUE)

    # Many sessions

    def list_sessions(
        self,
        *,
        order: Order = "updated",
        limit: int = 50,
        cursor: str | None = None,
        **which: Unpack[Filters],
    ) -> Page:
        """List sessions without their messages, the last updated or created first, `limit` (1 to 1,000) a page.

        `which` narrows them down by `agent_id`, `user_id`, `key_prefix`, `title`, `updated_since`, `created_since`,
        `created_before`, `message_id` and `expired`. `title` is a text that the title holds; A to Z count as a to z,
        other letters as they are. `created_before` is the first moment that does not count, the other times do.
        `message_id` is the id of a message in the session's log. `expired` is False for live sessions, True for expired
        ones, None for both. `cursor` is the `next` of the page before, else
        `InvalidCursor`, as for that of another `order`; "created" sorts what the filters leave. A session that is
        updated moves to the front while you page, and may be on none of your pages: `iter_sessions` has each once.
        """
        return self._context.read(lists.page, Filter(**which), limit, cursor, order)

    def iter_sessions(self, *, page_size: int = 500, **which: Unpack[Filters]) -> Iterator[SessionInfo]:
        """Read sessions one by one in the order of their keys, each exactly once, whatever is updated meanwhile.

        Filters as in `list_sessions`. A page is in memory, and no connection is held in between. A session that is made
        or deleted meanwhile may be seen or not.
        """
        chosen = Filter(**which)
        return (info for page in session_pages(self._context, chosen, page_size) for info in page)

    def count(self, **which: Unpack[Filters]) -> int:
        """Count sessions; filters as in `list_sessions`."""
        return self._context.read(lists.count, Filter(**which))

    def stats(self) -> Stats:
        """Return what the store holds: sessions, messages, records, tokens and bytes, by agent and by expiry."""
        return self._context.read_together(
            lambda connection, _: stats.sum_up(connection, self._context.now(connection))
        )

    def examine(self, *, repair: bool = False, on_check: Callable[[str], None] | None = None) -> list[Finding]:
        """Check the store, and return what is wrong: schema, indexes, counters, summaries, orphans, values, settings.

        With `repair`, fix what can be fixed without guessing; the findings say so. It reads every row, which
        takes minutes for millions of messages: `on_check` gets the name of each check when it begins.
        """
        return maintenance.examine(self._context, repair=repair, on_check=on_check)

    # Search

    def search(self, words: str, *, limit: int = 20, offset: int = 0, **which: Unpack[SearchFilters]) -> SearchPage:
        """Find messages of live sessions by their words, the best first; `SearchUnavailable` without a search index.

        A message has to hold all of the words, in whatever order and case: `oslo weather`. "A phrase" in quotes stands
        as it is, `-word` must not be there, and `prefix*` begins a word. Whatever else is typed is read as words. What
        was said counts more than names of tools and texts of their outputs; records are not found.
        `which` narrows that down by `user_id`, `agent_id`, `key_prefix`, `role` (`model` counts as assistant,
        `function` as tool), `since` and `until`, the first moment that does not count. `offset` is the `next` of the
        page before; what is written meanwhile moves hits. Where too many messages match to rank them in time, only the
        newest are searched, and `newest` of the page says how many. See `schema.enable_search`.
        """
        return self._context.trying(lambda: searching.find(self._context, words, limit, offset, which))

    # Expiry

    def expire(
        self,
        *,
        now: datetime | None = None,
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
    ) -> ExpiryReport:
        """Purge sessions past their TTL, and, where given, those idle for `older_than` or made before `created_before`.

        The filters narrow that down, `limit` is the most sessions to purge. Each batch is a separate transaction of
        80 to 200 ms and at most `batch_size` sessions: a run that is interrupted has done whole batches. `archive`
        names a SQLite file that keeps what is purged; a batch is deleted only when it is on disk there. `on_batch` is
        called after each with the report so far. With `dry_run` nothing is purged; the report says what would be.
        Sessions that a row of another table holds stay, and the report names them.
        """
        moment = None if now is None else aware(now)
        policy = Policy(older_than, created_before, agent_id, user_id, key_prefix)
        report = lifecycle.purge(self._context, policy, moment, batch_size, limit, archive, on_batch, dry_run)
        if not dry_run:
            searching.drain(self._context)
        return report

    def delete_where(
        self,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        key_prefix: str | None = None,
        batch_size: int = 500,
    ) -> int:
        """Delete all sessions of a user, an agent or a key prefix, expired ones too, and tell how many.

        At least one filter is needed, ValueError otherwise; several narrow it down. A batch is a transaction.
        `SessionHeld`, when all others are gone, if rows of another table hold some of them.
        """
        if user_id is None and agent_id is None and not key_prefix:
            raise ValueError(
                "no filter was given, and all sessions would be deleted: give user_id, agent_id or key_prefix"
            )
        policy = Policy(agent_id=agent_id, user_id=user_id, key_prefix=key_prefix, everything=True)
        report = lifecycle.purge(self._context, policy, None, batch_size)
        if report.held:
            raise SessionHeld(*next(iter(report.held.items())))
        searching.drain(self._context)
        return report.sessions

    def restore(self, archive: str | Path, key: str, *, ttl: timedelta | None = None) -> Session:
        """Restore a session from an archive, without a TTL unless one is given; the archive keeps it too.

        `SessionNotFound` if the archive has none of that key, `SessionExists` if the store has one.
        """
        return maintenance.restore(self._context, archive, key, ttl)

    # Steps of more than one verb

    def _bound(self, context: Context) -> Store:
        store = copy.copy(self)
        store._context = context
        return store

    def _at(self, key: str) -> Conversation:
        return Conversation(self._context, key)


def session_pages(context: Context, chosen: Filter, page_size: int) -> Iterator[list[SessionInfo]]:
    """Read sessions in the order of their keys page by page, no connection held in between."""
    return lists.pages(lambda after: context.read(lists.walk, chosen, after, page_size), page_size)


def _replica(url: str | sa.URL) -> sa.Engine:
    if not isinstance(url, str | sa.URL):
        raise TypeError(f"replica is {type(url).__name__}: give a URL")
    try:
        return create_engine(url)
    except ValueError as error:
        raise ValueError(f"replica: {error}") from None


def _borrowed(engine: object) -> sa.Engine:
    if getattr(getattr(engine, "dialect", None), "is_async", False):
        raise TypeError(
            f"database is an async engine: write Store(engine.url), which uses its own driver, and {IN_ASYNC_SESSIONS}"
        )
    if not isinstance(engine, sa.Engine):
        raise TypeError(f"database is {type(engine).__name__}: give a URL or an Engine")
    return engine
