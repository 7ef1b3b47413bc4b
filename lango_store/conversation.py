"""A handle for one session. It holds only the session's key."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, Unpack, overload

import sqlalchemy as sa

from lango_store import window
from lango_store._connections.context import Context
from lango_store._dialect import Moment
from lango_store._operations.log import messages as log
from lango_store._operations.log import payloads, removals, turns
from lango_store._operations.log.messages import Damaged, PayloadMode, Range
from lango_store._operations.session import levels, lists, sessions
from lango_store._operations.session.lists import Filter
from lango_store._operations.session.sessions import Expected
from lango_store._parts import turns as turns_of_session
from lango_store._parts.groups import session_group
from lango_store._parts.values import Values
from lango_store._rooms.alternatives import reading as alternatives
from lango_store._rooms.composition import RoomsOfConversation
from lango_store._rooms.tool_calls import in_turn
from lango_store._rooms.turns_in_progress import groups as turns_in_progress
from lango_store._rooms.turns_in_progress import running_turn
from lango_store._rooms.versions import earlier_logs
from lango_store._services import appending
from lango_store._values.model import (
    UNSET,
    Compaction,
    Message,
    OwnFields,
    SessionChanges,
    SessionFields,
    SessionInfo,
    Turn,
    Unset,
)
from lango_store._values.session import Session
from lango_store._values.summarizer import Summarizer, summarize
from lango_store._values.usage import total
from lango_store.errors import DamagedMessage, InvalidValue


class _Entries(TypedDict, total=False):
    """The keyword arguments of `Conversation.all_messages`, except `damaged`, which decides what it returns."""

    last: int | None
    after: int
    before: int | None
    limit: int | None
    expired: bool
    payloads: PayloadMode
    seqs: Sequence[int] | None
    id_prefix: str | None


class RunningTurn(in_turn.InTurn, running_turn.RunningTurn):
    """A turn in progress: a context manager that `Conversation.turn` returns.

    Entering the block takes the lease of the session; with `wait=`, it waits until the lease is free. Leaving the block
    saves the turn with all messages that were appended in it, and releases the lease. If the block raises an exception,
    the turn is not saved: its messages stay in the log, text that was streamed and not appended stays a draft, and the
    turn can be begun again at once. A turn has lost its lease if the lease ended and another turn began, or if
    `Conversation.turns.release` or `stop` was called.

    Use a turn in one thread at a time. Outside of the block, the methods that write raise `InvalidState`.

    Attributes:
        id: The id of the turn.
        replayed: True if the turn was saved before. Then `messages` has its messages, nothing more can be appended, and
            leaving the block writes nothing.
        usage: The usage to save with the turn, a dict of JSON. Set it before the end of the block.
        metadata: Your own data to save with the turn, a dict of JSON.
        stored: The saved turn: after the block or, if `replayed` is True, from its beginning. None until then.
        attempt: In a handler of `Store.work`, the number of this attempt, from 1. Otherwise 1.
        stopped: A `threading.Event` that is set when the turn is known to have lost its lease: at once if this process
            calls `Conversation.turns.stop`; in a handler of `Store.work`, at most a third of the lease after another
            process has done so; otherwise at the next write of the turn.
    """


class Turns(turns_in_progress.InTurns, turns_of_session.Turns):
    """The turns and compactions of a session: `Conversation.turns`.

    `save_turn`, `turn` and `compact` of the conversation store new ones.

    Attributes:
        key: The session's key.
    """


class Conversation(turns_in_progress.InConversation[RunningTurn], RoomsOfConversation):
    """A handle for one session.

    Methods for one subject are in groups: `turns`, `calls`, `suspensions`, `drafts`, `inbox`, `edits`, `versions` and
    `values`.

    `Store.open` and `Store.conversation` return conversations. A conversation holds no data, so any number of them can
    be used for one session. Returned objects are independent copies: changing them does not change stored data.

    Attributes:
        key: The session's key.

    The following exceptions apply to all methods, and most methods do not list them again. A method raises
    `SessionNotFound` if there is no such session, and `SessionExpired` if its TTL has passed, unless its description
    says otherwise. Every method that uses the database raises `SchemaOutOfDate`, `UnknownFeature`,
    `DatabaseUnavailable`, `DatabaseBusy` or `NotPermitted` if the schema is wrong, or the database is unreachable, busy
    or refuses permission. A method that reads messages raises `DamagedMessage` if a stored message cannot be read. An
    argument that is out of range raises `ValueError`.

    Example:
        ```python
        from lango_store import Message, Store

        with Store("sqlite:///agent.db", migrate=True) as store:
            conversation = store.open("telegram:42", user_id="ann")
            conversation.append_message(Message.user("Hello"))
            prompt = conversation.history(last=50)
        ```
    """

    _turn_type = RunningTurn

    # Groups of methods

    turns = session_group(Turns)
    """The turns and compactions of the session: list and find them, and look at the turn in progress."""
    values = session_group(Values)
    """The values of the session: JSON by name."""

    # The session

    def get(
        self,
        *,
        expired: bool = False,
        records: bool = False,
        as_of: int | datetime | None = None,
        alternative: int | None = None,
    ) -> Session:
        """Load the session with the messages of its window.

        Args:
            expired: Also load the session if it has expired and is not purged yet. The session stays expired.
            records: Also load the records between the messages.
            as_of: Load the window of an earlier moment. A number is the moment at which the session's `last_seq` had
                this value. With an aware datetime, the log ends before the first message or change of a later time. The
                counters are those of that moment, but the other fields of the session are the current ones. Needs
                `Store(keep_removed=…)`, unless there was no cut, edit or compaction since. Defaults to now.
            alternative: Load the window that the session would have after `switch` to this alternative, with the
                counters of that log. Cannot be combined with `as_of`.

        Returns:
            The session. After a compaction, its `messages` begin with the summary.

        Raises:
            NotKept: There was a cut, edit or compaction since `as_of`, and what it removed or replaced is not kept.
            MessageNotFound: The session has no such alternative.
            InvalidCut: A compaction discarded messages before the alternative.
        """
        if alternative is not None:
            if as_of is not None:
                raise TypeError("as_of is an earlier log, and alternative another one: give one of them")
            reading = self._reading(expired).read_together
            return reading(alternatives.load, self.key, alternative, records=records)
        if as_of is not None:
            clock = self._context.now
            return self._reading(expired).read_together(earlier_logs.load, self.key, as_of, clock, records=records)
        return self._reading(expired).read(log.load, self.key, records=records)

    def info(self, *, expired: bool = False) -> SessionInfo:
        """Load the session without its messages: fields, counters and times.

        Args:
            expired: Also load the session if it has expired and is not purged yet. The session stays expired.
        """
        return self._reading(expired).read(sessions.info, self.key)

    def update(
        self, *, activity: bool = False, expect: int | None = None, **changes: Unpack[SessionChanges]
    ) -> SessionInfo:
        """Change fields of the session.

        Fields that you do not pass keep their values. A JSON field is replaced as a whole, not merged.

        Args:
            activity: Also set `updated_at` to now, so that the session moves to the front of lists and its idle time
                starts again. False by default. `expires_at` never changes.
            expect: Change the session only if its `revision` equals this value.
            **changes: New values for `agent_id`, `user_id`, `title`, `model`, `settings`, `metadata`, `tools`,
                `last_consolidated` and `hold`. None clears a field, except `last_consolidated`, which is a number. A
                change of `hold` alone also works on an expired session.

        Returns:
            The changed session without its messages.

        Raises:
            Conflict: The session's `revision` differs from `expect`; nothing was changed.
            InvalidValue: A value cannot be stored losslessly; nothing was changed.
            ValueError: `last_consolidated` is negative or greater than `message_count`; nothing was changed.
            DamagedMessage: A field that you did not pass cannot be read. On PostgreSQL, the change was stored; on
                SQLite, nothing was changed.
        """
        expected = Expected(revision=expect)
        if changes.get("hold") == "":  # perhaps meant as a release
            raise InvalidValue("hold", "is empty; give the reason, or None to release the session")
        changes = self._context.own_fields(changes)
        return self._context.write(sessions.update, self.key, changes, activity=activity, expected=expected)

    # Messages

    def append_message(
        self,
        message: Message,
        *,
        after: int | None = None,
        expect: int | None = None,
        create: bool = False,
        ttl: timedelta | None | Unset = UNSET,
        request: window.Prompt | None = None,
        **fields: Unpack[SessionFields],
    ) -> Message:
        """Append a message to the session.

        When this method returns, the message is committed, except in a transaction of yours. An append restarts the
        session's TTL.

        Args:
            message: The message to store. A message whose `id` is already stored in the session is not stored again;
                the stored one is returned with `replayed=True`.
            after: Append only if the session's `last_seq` equals this value; 0 for a new session without messages.
            expect: Append only if the session's `revision` equals this value.
            create: Create the session if it does not exist, or replace it if it has expired, in the same transaction.
            ttl: The TTL of the session that `create=True` creates. Defaults to the store's `default_ttl`.
            request: The prompt that the message answers, from `history`. Its fingerprint is stored with the message, so
                that later prompts keep its thinking, and before the message the instructions and tools that the
                session has not stored yet.
            **fields: Fields of the session that `create=True` creates: `agent_id`, `user_id`, `title`, `model`,
                `settings`, `metadata` and `tools`. They do not change an existing session.

        Returns:
            The stored message with its `seq` and `created_at`.

        Raises:
            Conflict: `after` or `expect` does not match. With `create=True`, a missing or expired session matches no
                `expect`, and no `after` above 0. Nothing was written.
            InvalidMessage: The message cannot be stored losslessly; nothing was written.
            SessionNotFound: There is no such session, and `create` is False.
            SessionExpired: The session's TTL has passed, and `create` is False.
        """
        new = [message] if request is None else [*request.notes, request.answered(message)]
        return appending.append(self._context, self.key, new, None, after, expect, create, ttl, fields)[-1]

    def append_messages(
        self,
        messages: Sequence[Message],
        *,
        after: int | None = None,
        replace_after: int | None = None,
        keep: bool = False,
        expect: int | None = None,
        intact_since: SessionInfo | None = None,
        create: bool = False,
        ttl: timedelta | None | Unset = UNSET,
        **fields: Unpack[SessionFields],
    ) -> list[Message]:
        """Append messages to the session, all or none.

        With `replace_after`, the new messages may use the ids of the messages that the call deletes. If you repeat the
        call with the same messages and ids, and the log after `replace_after` consists of exactly these messages,
        nothing changes, and they are returned with `replayed=True`. If other writers have appended messages since, the
        repeated call deletes those too. To prevent this, pass `after`: the repeated call then raises `Conflict` instead
        of deleting them.

        Args:
            messages: The messages to store. A message whose `id` is already stored in the session is not stored again;
                the stored one is returned with `replayed=True`.
            after: Append only if the session's `last_seq` equals this value; 0 for a new session without messages.
            replace_after: First delete the messages with a `seq` above this value, as `truncate` does, in the same
                transaction, for example to regenerate an answer. Cannot be combined with `create`.
            keep: Set the messages that `replace_after` removes aside instead, as an alternative: see `alternatives` and
                `switch`. Their ids cannot be used again: the call returns stored messages with `replayed=True` if all
                new messages have such ids.
            expect: Append only if the session's `revision` equals this value.
            intact_since: Append only if no message of the session was changed or removed since this `SessionInfo` was
                loaded, and the session was not replaced. Appends are allowed, up to a million.
            create: Create the session if it does not exist, or replace it if it has expired, in the same transaction.
            ttl: The TTL of the session that `create=True` creates. Defaults to the store's `default_ttl`.
            **fields: Fields of the session that `create=True` creates, as in `append_message`.

        Returns:
            The stored messages, in the order of `messages`.

        Raises:
            Conflict: `after`, `expect` or `intact_since` does not match. With `create=True`, a missing or expired
                session matches no `expect`, no `intact_since`, and no `after` above 0. Nothing was written.
            InvalidMessage: A message cannot be stored losslessly; nothing was written.
            InvalidCut: A compaction discarded messages with a `seq` above `replace_after`, so the session cannot go
                back to that point; nothing was written.
            SessionNotFound: There is no such session, and `create` is False.
            SessionExpired: The session's TTL has passed, and `create` is False.
        """
        arguments = replace_after, after, expect, create, ttl, fields, intact_since
        return appending.append(self._context, self.key, messages, *arguments, keep=keep)

    def messages(
        self, *, last: int | None = None, records: bool = False, payloads: PayloadMode = "load"
    ) -> list[Message]:
        """Read the messages of the session's window: the messages that a model should see.

        `all_messages` reads the whole log. `history` returns the end of the window as dicts for a chat API.

        Args:
            last: Read at most this many messages, from the end of the window. By default the whole window.
            records: Also read the records between the messages. `last` counts them, too.
            payloads: "load" (default) returns messages as they were appended. "reference" returns a `Payload` in the
                place of each large string, and does not load the string: use it for lists and viewers.

        Returns:
            The messages in their order. After a compaction, the window begins with the summary.
        """
        if last is None:
            return self._context.read(log.load, self.key, records=records, mode=payloads).messages
        log.check_count("last", last)
        return self._context.read(log.read_last, self.key, last, records=records, mode=payloads)

    def payload(self, digest: str) -> str:
        """Load a large string of a message; see `messages(payloads="reference")`.

        Args:
            digest: The digest of a `Payload`.

        Raises:
            PayloadNotFound: Neither a message of the session nor a removed message that is kept refers to this payload.
        """
        return self._context.read(payloads.find, self.key, digest)

    @overload
    def all_messages(self, *, damaged: Literal["raise"] = "raise", **which: Unpack[_Entries]) -> list[Message]: ...

    @overload
    def all_messages(
        self, *, damaged: Literal["return"], **which: Unpack[_Entries]
    ) -> list[Message | DamagedMessage]: ...

    def all_messages(
        self,
        *,
        last: int | None = None,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        expired: bool = False,
        damaged: Damaged = "raise",
        payloads: PayloadMode = "load",
        seqs: Sequence[int] | None = None,
        id_prefix: str | None = None,
    ) -> Any:
        """Read the session's log, or a part of it: all messages, summaries and records.

        Args:
            last: Read at most this many entries, from the end of the range. Cannot be combined with `limit`.
            after: Read only entries with a `seq` above this value. Defaults to 0, the start of the session.
            before: Read only entries with a `seq` below this value. By default up to the end.
            limit: Read at most this many entries, from the start of the range.
            expired: Also read the log if the session has expired and is not purged yet. The session stays expired.
            damaged: `"raise"` (default) raises `DamagedMessage` for the first entry that cannot be read. `"return"`
                puts the exception into the list instead, and reads all other entries.
            payloads: "load" (default) or "reference", as for `messages`.
            seqs: Read only the entries with these seqs. By default all.
            id_prefix: Read only the entries whose `id` starts with this text of at least one character, in the order of
                their ids. `limit` and `last` then count in this order. Cannot be combined with `seqs`.

        Returns:
            The entries in the order of their `seq`, or with `id_prefix` in the order of their ids.

        Raises:
            DamagedMessage: An entry cannot be read, and `damaged` is `"raise"`.
            ValueError: `limit` is combined with `last`, or `seqs` with `id_prefix`, or a number is negative.
        """
        chosen = Range(after, log.MAX_SEQ if before is None else before, limit, last, seqs, id_prefix)
        context = self._reading(expired)
        read = context.read if damaged == "raise" else context.read_together
        return read(log.read, self.key, chosen, damaged, payloads)

    def iter_messages(self, *, after: int = 0, before: int | None = None, page_size: int = 500) -> Iterator[Message]:
        """Iterate over the log, entry by entry.

        One page is in memory at a time, and no connection is held between pages.

        Args:
            after: Read only entries with a `seq` above this value. Defaults to 0, the start of the session.
            before: Read only entries with a `seq` below this value. By default up to the end.
            page_size: The number of entries to read per statement, at least 1. Defaults to 500.
        """
        return (message for page in self._message_pages(after, before, page_size) for message in page)

    def find_message(self, id: str) -> Message | None:
        """Return the message of the log with this `id`, or None.

        Args:
            id: The id that the message was stored with.
        """
        return self._context.read(log.find, self.key, id)

    def truncate(self, *, after: int) -> int:
        """Delete the messages and records with a `seq` above a value.

        Turns that began after this `seq` are deleted too. A summary stays if it covers only messages that stay.
        Otherwise the summary is deleted as a whole, and those of its replaced messages that remain are in the window
        again.

        Args:
            after: The `seq` of the last message to keep; 0 deletes everything.

        Returns:
            The number of deleted messages, without records.

        Raises:
            InvalidCut: A compaction discarded messages with a `seq` above `after`, so the session cannot go back to
                that point; nothing was deleted.
        """
        return self._context.transact_once(removals.truncate, self.key, after)

    def clear(self, *, keep_system: bool = False) -> int:
        """Delete all messages of the session, with its turns, records and summary.

        `last_consolidated` becomes 0. A later message gets a higher `seq` than the deleted ones. Values and the inbox
        stay.

        Args:
            keep_system: Keep the messages with the role system, except those of a summary.

        Returns:
            The number of deleted messages, without records.
        """
        return self._context.transact_once(removals.clear, self.key, keep_system=keep_system)

    # Turns

    def save_turn(
        self,
        messages: Sequence[Message],
        usage: dict[str, Any] | None = None,
        *,
        id: str | None = None,
        metadata: dict[str, Any] | None = None,
        copied_from: str | None = None,
        after: int | None = None,
        expect: int | None = None,
        intact_since: SessionInfo | None = None,
        create: bool = False,
        ttl: timedelta | None | Unset = UNSET,
        session_metadata: dict[str, Any] | None = None,
        **fields: Unpack[OwnFields],
    ) -> Turn:
        """Append the messages of a turn together with its usage, all or nothing.

        If the turn is already stored, it is not stored again: the stored turn is returned with `replayed=True`. The
        store recognizes the turn by its `id` or, without one, by the ids of all its messages. If all of its messages
        were already appended outside a turn, the usage is stored as a turn without messages.

        Args:
            messages: The messages of the turn; may be empty. You may pass a stored question again, with its id, in
                front of the answer. It becomes part of the turn if it is the last entry of the log and belongs to no
                other turn.
            usage: Any JSON object as a dict, for example the token usage from the provider. Stored unchanged.
            id: Your id for the turn; 1 to 512 bytes in UTF-8. Defaults to no id.
            metadata: Your own data about the turn: a JSON object, as a dict.
            copied_from: If you copy the turn from another session, the key of that session. Its usage was spent only
                once, so `Store.usage` does not count the copy. `fork` marks the turns that it copies in the same way.
            after: Save only if the session's `last_seq` equals this value.
            expect: Save only if the session's `revision` equals this value.
            intact_since: Save only if no message of the session was changed or removed since this `SessionInfo` was
                loaded, and the session was not replaced. Appends are allowed, up to a million.
            create: Create the session if it does not exist, or replace it if it has expired, in the same transaction.
            ttl: The TTL of the session that `create=True` creates. Defaults to the store's `default_ttl`.
            session_metadata: The `metadata` of the session that `create=True` creates.
            **fields: Other fields of the session that `create=True` creates, as in `append_message`.

        Returns:
            The stored turn with its messages.

        Raises:
            Conflict: `after`, `expect` or `intact_since` does not match. With `create=True`, a missing or expired
                session matches no `expect`, no `intact_since`, and no `after` above 0. Nothing was written.
            InvalidMessage: A message cannot be stored losslessly; nothing was written.
            InvalidValue: `id`, `usage`, `metadata`, `copied_from` or a field cannot be stored losslessly; nothing was
                written.

        Example:
            ```python
            conversation.save_turn([question, answer], {"input_tokens": 20, "output_tokens": 9}, id="turn-1")
            ```
        """
        about = SessionFields(**fields, metadata=session_metadata)
        make = appending.missing(self._context, self.key, create, ttl, about)
        new = appending.encoded(self._context, messages)
        if id is None and self._context.gives_ids and (not messages or any(each.id is None for each in messages)):
            id = self._context.new_id()  # otherwise, the ids of its messages identify the turn
        turn = turns.new_turn(id, usage, metadata, copied_from)
        return appending.append_with_retry(
            self._context,
            self.key,
            new,
            self._context.expected(self.key, after, expect, intact_since),
            make,
            functools.partial(turns.save, turn=turn),
            functools.partial(turns.save_new, turn=turn),
            has_ids=turn.id is not None,
        )

    def total_usage(self, *, descendants: bool = False) -> dict[str, Any]:
        """Add up the usage of all turns and compactions.

        Args:
            descendants: Also add the turns of all live descendants of the session.

        Returns:
            A dict with all usage fields: the sum of each field with numbers, the latest value of any other field.
        """

        chosen = self._context.narrowed(Filter(key_prefix=levels.below(self.key)))

        def read(connection: sa.Connection, now: Moment, key: str) -> dict[str, Any]:
            sessions.row_of(connection, now, key)
            below = lists.keys(connection, now, chosen) if descendants else []
            return total(usage for each in (key, *below) for usage in turns.usages(connection, each))

        return self._context.read_together(read, self.key)

    # Children, branches and summaries

    def compact(self, summarizer: Summarizer, *, discard: bool = False) -> Compaction | None:
        """Replace the messages of the window with a summary.

        Nothing is locked while `summarizer` runs. Messages appended in the meantime stay in the window, after the
        summary.

        Args:
            summarizer: A function, or a coroutine function, that takes the messages of the window and returns the
                summary: a `Message`, or a list of messages.
            discard: Delete the replaced messages from the log, but keep records and the usage of turns. By default the
                replaced messages stay in the log.

        Returns:
            The compaction, or None if the window is empty.

        Raises:
            Conflict: The session was compacted, or messages were edited or removed, while `summarizer` ran; nothing was
                changed.
            InvalidMessage: A message of the summary cannot be stored losslessly; nothing was changed.
            TypeError: `summarizer` is a coroutine function, and an event loop is running in this thread.
        """
        pending = self.turns.begin_compaction()
        if pending is None:
            return None
        return pending.finish(summarize(summarizer, pending.window), discard=discard)

    # The prompt

    # Helpers

    def _message_pages(self, after: int, before: int | None, size: int) -> Iterator[list[Message]]:
        chosen = Range(after, log.MAX_SEQ if before is None else before)
        return log.pages(lambda part: self._context.read(log.read, self.key, part), chosen, size)

    def _reading(self, expired: bool) -> Context:
        return self._context.ignoring_expiry() if expired else self._context
