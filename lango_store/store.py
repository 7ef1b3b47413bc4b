"""The synchronous `Store`: create, read, append to and delete sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import Any, Literal, Self, TypeVar, Unpack, overload

import sqlalchemy as sa
from sqlalchemy import orm

from lango_store._connections.context import EVERY, IN_ASYNC_SESSIONS, Context, DefaultTTL, TimeSource, TokenCounter
from lango_store._dialect.statement import Observer
from lango_store._engine.engine import Durability, create_engine
from lango_store._operations.binds import SHARED_VALUE
from lango_store._operations.log import messages
from lango_store._operations.log.messages import Damaged
from lango_store._operations.session import lists, sessions, values
from lango_store._operations.session.lists import Filter, Filters, Order
from lango_store._operations.session.sessions import Expected
from lango_store._parts.groups import store_group
from lango_store._parts.values import Values
from lango_store._rooms.alternatives import branching
from lango_store._rooms.composition import RoomsOfMaintenance, RoomsOfStore
from lango_store._rooms.tail.watcher import Watcher
from lango_store._rooms.turns_in_progress import groups as turns_in_progress
from lango_store._rooms.versions import kept_copies
from lango_store._rows.encoding import checked_key
from lango_store._services import appending, lifecycle
from lango_store._values.model import UNSET, Message, SessionFields, SessionInfo, Unset
from lango_store._values.reports import Page
from lango_store._values.session import Session
from lango_store.conversation import Conversation, RunningTurn
from lango_store.errors import DamagedMessage, InvalidState, SessionNotFound

R = TypeVar("R")


class Maintenance(RoomsOfMaintenance):
    """Maintenance of the tables of a store: `Store.maintenance`. `Store.expire` purges sessions."""


class Store(turns_in_progress.InStore[Conversation, RunningTurn], RoomsOfStore):
    """Sessions and messages of LLM agents, in a SQLite or PostgreSQL database.

    One store serves all threads of a process. Creating a store does not connect; the first call connects and checks the
    schema. Returned objects are independent copies: changing them does not change stored data.

    Args:
        database: A database URL, such as `sqlite:///agent.db` or `postgresql://app@db/chat`, or a SQLAlchemy `Engine`.
            `close()` closes the engine that the store creates for a URL; an engine that you pass stays open.
        migrate: Create or upgrade the schema at the first call. By default an old schema raises `SchemaOutOfDate`.
        default_ttl: The TTL of new sessions: a timedelta, None (default) for sessions that never expire, or a function
            that takes the session key and returns one of these.
        clock: A function that returns the current time as an aware datetime. By default PostgreSQL's clock decides, so
            that all clients agree; on SQLite it is the clock of this machine.
        durability: `"full"` (default) waits until each commit is on disk. `"normal"` is faster on SQLite: the last
            appends may be lost in a power cut, but not when the process is killed. PostgreSQL ignores the option, and
            so does an `Engine` that you pass.
        token_counter: A function that takes a `Message` and returns its number of tokens. It is called for appended
            messages without `tokens`, except records.
        on_statement: A function that is called after each SQL statement with its text and its duration in seconds, in
            the thread that ran the statement.
        retry: How long to repeat calls that fail for a transient reason: the server is away, the connection is lost, a
            lock is held too long. None (default) repeats only calls whose transaction PostgreSQL aborted (a deadlock, a
            serialization failure), for up to 30 seconds. With `retry`, appended messages and saved turns without an id
            get one, so that nothing is stored twice. Calls inside your own transaction are never repeated. Removals and
            other calls that must not run twice are not repeated if the connection was lost: they raise
            `DatabaseUnavailable`, and may have been committed.
        payload_threshold: The length in characters from which a string in `content`, `tool_calls` or `extra` of a
            message is stored separately from the message's row, once per session; 1 or more. By default, it is 4,096
            for data URIs and for the strings of records, `tool_calls` and `extra`, and 65,536 for all others. None
            stores all strings in the row. The option does not change what is read.
        keep_removed: How long to keep the messages that cuts, edits and compactions remove or replace, so that
            `Conversation.versions.undo` can take these changes back, and `get(as_of=…)` can read the earlier log. When
            this time has passed, `expire` deletes the kept messages. None (default) keeps nothing: changes by such a
            store cannot be taken back.
        replica: The URL of a PostgreSQL replica. The store reads sessions, messages, prompts and lists from the
            replica if it has everything that this store wrote, otherwise from `database`.

    Raises:
        TypeError: `database` is an async engine, or neither a URL nor an engine; or `replica` is not a URL.
        ValueError: A URL or an option is invalid.

    The following exceptions apply to all methods, and most methods do not list them again. A method that takes a `key`
    raises `SessionNotFound` if there is no such session, and `SessionExpired` if its TTL has passed, unless its
    description says otherwise. It raises `InvalidKey` if the key is not text of 1 to 512 characters. A method that
    reads messages raises `DamagedMessage` if a stored message cannot be read. Every method that uses the database
    raises `SchemaOutOfDate`, `UnknownFeature`, `DatabaseUnavailable`, `DatabaseBusy` or `NotPermitted` if the schema is
    wrong, or the database is unreachable, busy or refuses permission. An argument that is out of range raises
    `ValueError`.

    Example:
        ```python
        from lango_store import Message, Store

        with Store("sqlite:///agent.db", migrate=True) as store:
            store.create("telegram:42", agent_id="support")
            store.append_message("telegram:42", Message.user("Hello"))
            session = store.get("telegram:42")
        ```
    """

    def __init__(
        self,
        database: str | sa.URL | sa.Engine,
        *,
        migrate: bool = False,
        default_ttl: DefaultTTL = None,
        clock: TimeSource | None = None,
        durability: Durability = "full",
        token_counter: TokenCounter | None = None,
        on_statement: Observer | None = None,
        retry: timedelta | None = None,
        payload_threshold: int | None | Unset = UNSET,
        keep_removed: timedelta | None = None,
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
            payload_threshold=payload_threshold,
            recorder=kept_copies.keeper(keep_removed),
            set_aside=branching.set_aside,
            replica=None if replica is None else _replica(replica),
            watch=Watcher,
        )

    # Sessions

    def create(
        self,
        key: str | None = None,
        *,
        ttl: timedelta | None | Unset = UNSET,
        messages: Sequence[Message] = (),
        **fields: Unpack[SessionFields],
    ) -> Session:
        """Create a session, optionally with its first messages.

        Args:
            key: The session's key, 1 to 512 characters. None (default) creates a UUIDv7.
            ttl: How long the session lives after the last append, `inbox.put` or `touch`, up to 100 years. None means
                that it never expires. Defaults to the store's `default_ttl`.
            messages: The first messages. They are stored in the same transaction.
            **fields: Fields of the session: `agent_id`, `user_id`, `title` and `model` (text), `settings` and
                `metadata` (dicts of JSON), `tools` (a list of JSON). All are optional.

        Returns:
            The new session with its messages.

        Raises:
            SessionExists: A session has this key, live or expired; nothing was written.
            InvalidMessage: A message cannot be stored losslessly; nothing was written.
            InvalidValue: A field cannot be stored losslessly; nothing was written.
        """
        new = appending.new_session(self._context, key, ttl, fields)
        return lifecycle.create(self._context, new, appending.encoded(self._context, messages), own_key=key is None)

    def get(
        self, key: str, *, expired: bool = False, records: bool = False, as_of: int | datetime | None = None
    ) -> Session:
        """Load a session with the messages of its window.

        Messages and fields are always read at the same moment, even while other processes write.

        Args:
            key: The session to load.
            expired: Also load a session that has expired and is not purged yet. The session stays expired.
            records: Also load the records between the messages.
            as_of: Load the window of an earlier moment: a `seq` or an aware datetime, as in `Conversation.get`.
                Defaults to now.

        Returns:
            The session. After a compaction, its `messages` begin with the summary.

        Raises:
            SessionNotFound: There is no such session.
            SessionExpired: The session's TTL has passed, and `expired` is False.
            NotKept: There was a cut, edit or compaction since `as_of`, and what it removed or replaced is not kept.
        """
        return self._at(key).get(expired=expired, records=records, as_of=as_of)

    def open(
        self,
        key: str | None = None,
        *,
        ttl: timedelta | None | Unset = UNSET,
        messages: Sequence[Message] = (),
        renew: bool = False,
        **fields: Unpack[SessionFields],
    ) -> Conversation:
        """Return a `Conversation` for a session, and create the session if it does not exist.

        Of many concurrent calls with a new key, one creates the session.

        Args:
            key: The session to open. None (default) creates a session with a UUIDv7 as its key.
            ttl: The TTL of a new session, as in `Store.create`. An existing session keeps its TTL.
            messages: The first messages of a new session. They are not added to an existing session.
            renew: Replace an expired session with a new one instead of raising `SessionExpired`.
            **fields: Fields of a new session, as in `Store.create`. They do not change an existing session.

        Raises:
            SessionExpired: The session has expired, and `renew` is False.
            InvalidMessage: A message cannot be stored losslessly; nothing was written.
            InvalidValue: A field cannot be stored losslessly; nothing was written.
        """
        new = appending.new_session(self._context, key, ttl, fields)
        first = appending.encoded(self._context, messages)
        if key is None:
            lifecycle.create(self._context, new, first, own_key=True)
        else:
            lifecycle.find_or_create(self._context, new, first, sessions.row_of, renew=renew)
        return self._at(new.key)

    def conversation(self, key: str) -> Conversation:
        """Return a `Conversation` for a session without accessing the database.

        If the session does not exist, the methods of the conversation raise `SessionNotFound`.

        Args:
            key: The session's key.

        Raises:
            InvalidKey: The key is not text of 1 to 512 characters.
        """
        return self._at(checked_key(key))

    def exists(self, key: str) -> bool:
        """Return True if a live session has this key; False if it is missing or expired."""
        try:
            return self._context.read(sessions.exists, key)
        except SessionNotFound:  # of another user than that of a store for one user
            return False

    def touch(self, key: str, *, ttl: timedelta | None | Unset = UNSET) -> SessionInfo:
        """Restart a session's TTL, and revive the session if it has expired.

        The session must not be purged yet. `revision` changes, `updated_at` does not.

        Args:
            key: The session, live or expired.
            ttl: A new TTL for this session, up to 100 years; None means that it never expires. By default the session
                keeps its TTL.

        Returns:
            The changed session without its messages.

        Raises:
            SessionNotFound: There is no such session.
            DamagedMessage: A field of the session cannot be read. On PostgreSQL, the new expiry was stored; on SQLite,
                nothing was changed.
        """
        return self._context.write(sessions.touch, key, ttl)

    def delete(self, key: str, *, expect: int | None = None, descendants: bool = False) -> bool:
        """Delete a session, live or expired, and everything that belongs to it.

        Args:
            key: The session to delete.
            expect: Delete the session only if its `revision` equals this value.
            descendants: Also delete all descendants of the session, in the same transaction. Without `expect`, they are
                deleted even if the session itself does not exist.

        Returns:
            True if a session was deleted, False if there was none.

        Raises:
            Conflict: The session's `revision` differs from `expect`; nothing was deleted.
            SessionHeld: A row of another table refers to the session, or to one of the descendants, by a foreign key
                without ON DELETE; nothing was deleted. `key` of the exception names the session or descendant.
        """
        return lifecycle.delete(self._context, key, Expected(revision=expect), descendants=descendants)

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
        """Append a message to a session.

        When this method returns, the message is committed, except in a transaction of yours. An append restarts the
        session's TTL.

        Args:
            key: The session to append to.
            message: The message to store. A message whose `id` is already stored in the session is not stored again;
                the stored one is returned with `replayed=True`.
            after: Append only if the session's `last_seq` equals this value; 0 for a new session without messages.
            expect: Append only if the session's `revision` equals this value.
            create: Create the session if it does not exist, or replace it if it has expired, in the same transaction.
            ttl: The TTL of the session that `create=True` creates, as in `Store.create`. Cannot be passed without
                `create=True`.
            **fields: Fields of the session that `create=True` creates, as in `Store.create`. They do not change an
                existing session.

        Returns:
            The stored message with its `seq` and `created_at`.

        Raises:
            SessionNotFound: There is no such session, and `create` is False.
            SessionExpired: The session's TTL has passed, and `create` is False.
            Conflict: `after` or `expect` does not match. With `create=True`, a missing or expired session matches no
                `expect`, and no `after` above 0. Nothing was written.
            InvalidMessage: The message cannot be stored losslessly; nothing was written.
        """
        return appending.append(self._context, key, [message], None, after, expect, create, ttl, fields)[0]

    # Lists

    def list_sessions(
        self,
        *,
        order: Order = "updated",
        limit: int = 50,
        cursor: str | None = None,
        **which: Unpack[Filters],
    ) -> Page[SessionInfo]:
        """List live sessions without their messages, the most recent first.

        In the default order, a session moves to the front when its `updated_at` changes, so you may miss it between two
        pages. Use `iter_sessions` to see each session once.

        Args:
            order: Sort by `"updated"` (default, `updated_at`) or by `"created"` (`created_at`).
            limit: The number of sessions per page, 1 to 1,000. Defaults to 50.
            cursor: The `next` of the previous page. None (default) reads the first page.
            **which: List only sessions that match all of these filters: `agent_id`, `user_id`, `key_prefix`, `title`
                (a part of the title; A to Z match a to z), `updated_since`, `updated_before` (exclusive),
                `created_since`, `created_before` (exclusive), `message_id` (a message with this id is in the log),
                `top_level` (True for sessions that are not child sessions), `held` (True for sessions with a hold), and
                `expired`: False (default) for live sessions, True for expired ones, None for both. Times are aware
                datetimes.

        Returns:
            A page: `items`, and `next`, the cursor of the next page or None.

        Raises:
            InvalidCursor: The cursor was not returned by `list_sessions`, or it was returned for another `order`.
        """
        return self._context.read(lists.page, Filter(**which), limit, cursor, order)

    def iter_sessions(self, *, page_size: int = 500, **which: Unpack[Filters]) -> Iterator[SessionInfo]:
        """Iterate over live sessions in the order of their keys, each exactly once.

        Sessions that are created or deleted during the iteration may or may not be included. One page is in memory at a
        time, and no connection is held between pages.

        Args:
            page_size: The number of sessions to read per statement, 1 to 1,000. Defaults to 500.
            **which: Filters as in `list_sessions`.
        """
        chosen = Filter(**which)
        return (info for page in session_pages(self._context, chosen, page_size) for info in page)

    def count(self, **which: Unpack[Filters]) -> int:
        """Count live sessions.

        Args:
            **which: Filters as in `list_sessions`; `expired=None` counts expired sessions too.
        """
        return self._context.read(lists.count, Filter(**which))

    @overload
    def messages_of(
        self, keys: Sequence[str], *, first: int | None = None, last: int | None = None
    ) -> dict[str, list[Message]]: ...

    @overload
    def messages_of(
        self, keys: Sequence[str], *, first: int | None = None, last: int | None = None, damaged: Literal["return"]
    ) -> dict[str, list[Message | DamagedMessage]]: ...

    def messages_of(
        self, keys: Sequence[str], *, first: int | None = None, last: int | None = None, damaged: Damaged = "raise"
    ) -> Any:
        """Read the first or the last messages of several sessions at once, for example for a list of sessions.

        The number of statements does not depend on the number of sessions: one, and one more if messages have
        payloads.

        Args:
            keys: The sessions.
            first: Read this many messages from the start of each log, records included; 1 or more.
            last: Read this many messages from the end of each log, records included; 1 or more.
            damaged: As in `Conversation.all_messages`.

        Returns:
            The messages by session key, in the order of `keys`. Sessions that do not exist or have expired are left
            out.
        """
        return self._context.read(messages.read_ends, keys, first, last, damaged)

    def values_of(self, keys: Sequence[str], prefix: str | None = None) -> dict[str, dict[str, Any]]:
        """Read the values of several sessions at once, with one statement.

        Args:
            keys: The sessions.
            prefix: Only values whose name starts with this text. Defaults to all values.

        Returns:
            The values by session key, in the order of `keys`. Sessions that do not exist or have expired are left out.
        """
        return self._context.read(values.read_many, keys, prefix)

    # Groups of methods

    maintenance = store_group(Maintenance)
    """Maintenance of the tables: check and repair them, and move large strings."""

    def shared_values(self, scope: str) -> Values:
        """Return the shared values of a scope, without accessing the database.

        Deleting a session does not delete shared values.

        Args:
            scope: Any text of 1 to 512 characters that your application chooses, such as `user:ann`. It is independent
                of session keys.
        """
        return Values(self._context, scope, SHARED_VALUE)

    def shared_values_of(self, scopes: Sequence[str], prefix: str | None = None) -> dict[str, dict[str, Any]]:
        """Read the shared values of several scopes at once, with one statement.

        Args:
            scopes: The scopes.
            prefix: Only values whose name starts with this text. Defaults to all values.

        Returns:
            The values by scope, in the order of `scopes`. A new scope has none.
        """
        return self._context.read(values.read_many, scopes, prefix, SHARED_VALUE)

    # Transactions and snapshots

    @contextmanager
    def transaction(self) -> Iterator[Store]:
        """Open a transaction, and yield a store whose calls all belong to it.

        The transaction commits when the block ends, and rolls back if the block raises an exception. On SQLite the
        block holds the write lock, so other writers wait. For a store from `using(connection)`, the block is a
        savepoint. Calls in the block are never retried; use `transact` for a transaction that the store may repeat.

        Raises:
            InvalidState: The yielded store was used after the block.

        Example:
            ```python
            with store.transaction() as tx:
                tx.append_message("k", Message.user("Hello"))
                tx.conversation("k").values.set({"step": 1})
            ```
        """
        with (
            self._context.telemetry.span("transaction", None),
            self._bound_to(self._context.transaction(EVERY)) as store,
        ):
            yield store

    def transact(self, function: Callable[[Store], R]) -> R:
        """Run a function in a transaction, commit, and return the function's result.

        The function may run several times, so it should have no effects outside of the transaction. It is repeated if
        the database aborted the transaction (a deadlock, a serialization failure), and with `Store(retry=…)` also if
        the database could not be reached or was busy.

        Args:
            function: A function that takes a store whose calls all belong to the transaction. If the function raises,
                the transaction rolls back.

        Returns:
            The result of the last call of the function.

        Raises:
            DatabaseUnavailable: The database cannot be reached. If the connection was lost during the commit, the
                transaction may have been committed.

        Example:
            ```python
            def book(tx: Store) -> None:
                tx.append_message("k", Message.user("Book it."))
                tx.conversation("k").values.set({"step": 2})

            store.transact(book)
            ```
        """

        def run() -> R:
            with self._bound_to(self._context.transaction(EVERY)) as tx:
                return function(tx)

        with self._context.telemetry.span("transact", None):
            return self._context.trying(run, if_lost=False)

    @contextmanager
    def snapshot(self) -> Iterator[Store]:
        """Open a snapshot, and yield a read-only store whose reads see the database at one moment.

        For a store from `using(connection)`, the isolation level of your transaction determines what the reads see.

        Raises:
            InvalidState: The yielded store was used to write, or was used after the end of the block.

        Example:
            ```python
            with store.snapshot() as view:
                session, values = view.get("k"), view.conversation("k").values.get()
            ```
        """
        opened = self._context.snapshot(EVERY)
        with self._context.telemetry.span("snapshot", None), self._bound_to(opened, read_only=True) as store:
            yield store

    def using(self, connection: sa.Connection | orm.Session | orm.scoped_session[Any]) -> Store:
        """Return a store that reads and writes in your own transaction.

        You commit or roll back what this store writes. Its calls are never retried.

        Args:
            connection: A SQLAlchemy connection or session. In an `AsyncSession` write
                `await session.run_sync(lambda s: store.using(s).append_message(key, message))`.

        Raises:
            TypeError: `connection` is neither a connection nor a session of SQLAlchemy.
        """
        return self._bound(self._context.using(connection))

    # Replicas

    def position(self) -> str | None:
        """Return the database's current write position, to pass to `at()`; None on SQLite."""
        return self._context.trying(self._context.position)

    def at(self, position: str | None) -> Store:
        """Return a store that sees all writes up to a position, even if it reads from a replica.

        Use it to read what another process wrote. Closing the returned store has no effect: close this one.

        Args:
            position: The result of `position()` in the process that wrote. None requires nothing.

        Raises:
            ValueError: The text is not a position.
        """
        return self._bound(self._context.at(position))

    # Maintenance

    def ping(self) -> None:
        """Check that the database answers, and that its schema and tables fit this release.

        Raises:
            DatabaseUnavailable: The database cannot be reached.
            SchemaOutOfDate: The schema is older than this release needs.
            DamagedDatabase: A table is missing.
        """
        self._context.ping()

    # Engine and closing

    @property
    def engine(self) -> sa.Engine:
        """The SQLAlchemy engine, for example for your own queries.

        If you passed an engine to the store, it is that engine.
        """
        return self._context.engine

    def close(self) -> None:
        """Close the connections. The store cannot be used afterwards.

        An engine that you passed stays open.
        """
        self._context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Helpers

    @contextmanager
    def _bound_to(self, opened: AbstractContextManager[sa.Connection], *, read_only: bool = False) -> Iterator[Store]:
        is_open = True

        def get_connection() -> sa.Connection:
            if not is_open:
                raise InvalidState("this block has ended: begin another one with store.transaction() or snapshot()")
            return connection

        with opened as connection:
            try:
                yield self._bound(self._context.bound(get_connection, read_only=read_only))
            finally:
                is_open = False

    def _at(self, key: str) -> Conversation:
        return Conversation(self._context, key)


def session_pages(context: Context, chosen: Filter, page_size: int) -> Iterator[list[SessionInfo]]:
    """Read sessions page by page in the order of their keys; no connection is held between pages."""
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
