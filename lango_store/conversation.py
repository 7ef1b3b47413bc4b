"""A handle for one session. It holds only the session's key."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

import sqlalchemy as sa

from lango_store import window
from lango_store._connections.context import Context
from lango_store._dialect import Moment
from lango_store._operations import (
    calls,
    drafts,
    edits,
    history,
    inbox,
    leases,
    levels,
    lists,
    payloads,
    prompts,
    removals,
    sessions,
    suspensions,
    turns,
)
from lango_store._operations import messages as log
from lango_store._operations import values as named_values
from lango_store._operations.appends import Batch
from lango_store._operations.calls import Place
from lango_store._operations.lists import Filter
from lango_store._operations.messages import Damaged, PayloadMode, Range
from lango_store._operations.search import SearchFilters
from lango_store._operations.sessions import Expected
from lango_store._operations.turns import PendingCompaction
from lango_store._rows.encoding import encode_id, encode_json, encode_role
from lango_store._services import appending, effects, lifecycle, maintenance, searching, watching
from lango_store._services.effects import Effect
from lango_store._values.events import Event
from lango_store._values.model import (
    UNSET,
    BegunCall,
    Change,
    Compaction,
    Diff,
    Draft,
    Message,
    MessageRole,
    OpenTurn,
    OwnFields,
    SessionChanges,
    SessionFields,
    SessionInfo,
    Suspension,
    ToolCall,
    Turn,
    Undone,
    Unset,
)
from lango_store._values.reports import SearchPage
from lango_store._values.session import Session
from lango_store._values.summarizer import Summarizer, Summary, summarize
from lango_store._values.usage import total
from lango_store.errors import DamagedMessage, InvalidMessage, UniqueViolation, quoted
from lango_store.running_turn import RunningTurn

P = ParamSpec("P")
R = TypeVar("R")


class Conversation:
    """A handle for one session.

    It has most methods of `Store` that work on one session (but not `exists`, `touch` and `delete`), without their
    `key` argument, and methods for the log, the turns and the forks of the session.

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

    __slots__ = ("_context", "key")

    def __init__(self, context: Context, key: str) -> None:
        self._context = context
        self.key = key

    def __repr__(self) -> str:
        return f"Conversation({self.key!r})"

    # The session

    def get(self, *, expired: bool = False, records: bool = False, as_of: int | datetime | None = None) -> Session:
        """Load the session with the messages of its window.

        Args:
            expired: Also load the session if it has expired and is not purged yet. The session stays expired.
            records: Also load the records between the messages.
            as_of: Load the window of an earlier moment. A number is the moment at which the session's `last_seq` had
                this value. With an aware datetime, the log ends before the first message or change of a later time. The
                counters are those of that moment, but the other fields of the session are the current ones. Needs
                `Store(keep_removed=…)`, unless there was no cut, edit or compaction since. Defaults to now.

        Returns:
            The session. After a compaction, its `messages` begin with the summary.

        Raises:
            NotKept: There was a cut, edit or compaction since `as_of`, and what it removed or replaced is not kept.
        """
        if as_of is not None:
            clock = self._context.now
            return self._reading(expired).read_together(history.load, self.key, as_of, clock, records=records)
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
            **changes: New values for `agent_id`, `user_id`, `title`, `model`, `settings`, `metadata`, `tools` and
                `last_consolidated`. None clears a field, except `last_consolidated`, which is a number.

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
        new = appending.append(self._context, self.key, [message], None, after, expect, create, ttl, fields)
        return new[0]

    def append_messages(
        self,
        messages: Sequence[Message],
        *,
        after: int | None = None,
        replace_after: int | None = None,
        expect: int | None = None,
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
            expect: Append only if the session's `revision` equals this value.
            create: Create the session if it does not exist, or replace it if it has expired, in the same transaction.
            ttl: The TTL of the session that `create=True` creates. Defaults to the store's `default_ttl`.
            **fields: Fields of the session that `create=True` creates, as in `append_message`.

        Returns:
            The stored messages, in the order of `messages`.

        Raises:
            Conflict: `after` or `expect` does not match. With `create=True`, a missing or expired session matches no
                `expect`, and no `after` above 0. Nothing was written.
            InvalidMessage: A message cannot be stored losslessly; nothing was written.
            InvalidCut: A compaction discarded messages with a `seq` above `replace_after`, so the session cannot go
                back to that point; nothing was written.
            SessionNotFound: There is no such session, and `create` is False.
            SessionExpired: The session's TTL has passed, and `create` is False.
        """
        return appending.append(self._context, self.key, messages, replace_after, after, expect, create, ttl, fields)

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
        return self._context.read(log.tail, self.key, last, records=records, mode=payloads)

    def payload(self, digest: str) -> str:
        """Load a large string of a message; see `messages(payloads="reference")`.

        Args:
            digest: The digest of a `Payload`.

        Raises:
            PayloadNotFound: Neither a message of the session nor a removed message that is kept refers to this payload.
        """
        return self._context.read(payloads.find, self.key, digest)

    @overload
    def all_messages(
        self,
        *,
        last: int | None = None,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        expired: bool = False,
        damaged: Literal["raise"] = "raise",
        payloads: PayloadMode = "load",
    ) -> list[Message]: ...

    @overload
    def all_messages(
        self,
        *,
        last: int | None = None,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        expired: bool = False,
        damaged: Literal["return"],
        payloads: PayloadMode = "load",
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

        Returns:
            The entries in the order of their `seq`.

        Raises:
            DamagedMessage: An entry cannot be read, and `damaged` is `"raise"`.
            ValueError: `limit` is combined with `last`, or a number is negative.
        """
        chosen = Range(after, log.MAX_SEQ if before is None else before, limit, last)
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

    def tail(self, *, after: int | str = 0, follow: bool = True) -> Generator[Event, None, None]:
        """Follow the session: yield its stored events after a position, then new events.

        New events may come from any process. Each message is yielded once, in the order of `seq`. Waiting for an event
        blocks the thread, but holds no connection.

        Args:
            after: A `seq`, to start after that message, or the `cursor` of an event. Defaults to 0, the start of the
                session. With a `seq`, whichever session has the key now is followed. With a cursor, the session that
                the cursor came from is followed: if that session no longer exists, the only event is `Ended`, even if
                another session has the key now.
            follow: Wait for more events (default). If False, end after the stored ones.

        Yields:
            `Appended`, `Changed`, `Piece` and, if the session is deleted, replaced or expires, `Ended`. Do not change
            the events: other calls of `tail` in this process may yield the same objects.

        Raises:
            InvalidCursor: `after` is text, but not a cursor.
            LangoStoreError: The store was closed; or `follow` is True and the store belongs to a transaction.
        """
        return watching.follow(watching.Reader(self._context, self.key, after, follow=follow))

    def find_message(self, id: str) -> Message | None:
        """Return the message of the log with this `id`, or None.

        Args:
            id: The id that the message was stored with.
        """
        return self._context.read(log.find, self.key, id)

    def last_message(self, role: MessageRole | str | None = None) -> Message | None:
        """Return the last message of the session, or the last message of a role.

        Summaries and records are skipped. Messages are read from the end until one matches: in a session of a million
        messages without the role, this takes about a second.

        Args:
            role: The role to look for: `model` counts as assistant, `function` as tool. None (default) is any role.

        Returns:
            The message, or None if no message has this role.
        """
        wanted = None if role is None else MessageRole(encode_role(role))
        return self._context.read_together(log.last_of, self.key, wanted)

    def pop_message(self, *, records: bool = False) -> Message | None:
        """Remove the last message of the window, and return it.

        If this removes the only remaining message of a summary, the messages that the summary replaced are in the
        window again, unless the compaction discarded them.

        Args:
            records: Remove the last entry of the log, even if it is a record. By default records are skipped.

        Returns:
            The removed message, or None if there is none.
        """
        return self._context.transact_once(edits.pop, self.key, records=records)

    def update_message(self, seq_or_id: int | str, message: Message, *, expect: int | None = None) -> Message:
        """Replace a message of the log.

        The new message gets the `seq` and the turn of the old one. It also gets the old `id` and `created_at`, unless
        you set them. If the id changes, the old id can be stored again, so a late retry of the old append would store
        the old message again.

        Args:
            seq_or_id: The `seq` (an int) or the `id` (text) of the message to replace.
            message: The new message.
            expect: Replace the message only if the session's `revision` equals this value.

        Returns:
            The new message, with its `seq` and `created_at`.

        Raises:
            MessageNotFound: The session has no such message; nothing was changed.
            InvalidMessage: The message cannot be stored losslessly, another message has its `id`, its tool calls differ
                although one of the old calls was begun, or a message of a summary would become a record; nothing was
                changed.
            Conflict: The session's `revision` differs from `expect`; nothing was changed.
        """
        message = self._context.counted(message)
        try:
            expected, least = Expected(revision=expect), self._context.least_payload
            return self._context.transact(edits.update, self.key, seq_or_id, message, expected, least)
        except UniqueViolation as error:
            reason = f"{quoted(message.id)} is the id of another message: give another, or None to keep the old one"
            raise InvalidMessage("id", reason) from error

    def delete_message(self, seq_or_id: int | str, *, expect: int | None = None) -> None:
        """Delete a message anywhere in the log.

        The usage of the message's turn does not change, and summaries that cover the message stay. Deleting the only
        remaining message of a summary has the same effect as in `pop_message`. The message's `id` can be stored again.

        Args:
            seq_or_id: The `seq` (an int) or the `id` (text) of the message to delete.
            expect: Delete the message only if the session's `revision` equals this value.

        Raises:
            MessageNotFound: The session has no such message; nothing was deleted.
            Conflict: The session's `revision` differs from `expect`; nothing was deleted.
        """
        self._context.transact_once(edits.delete, self.key, seq_or_id, Expected(revision=expect))

    def redact_message(
        self,
        seq_or_id: int | str,
        *,
        reason: str | None = None,
        archive: str | Path | None = None,
    ) -> Message:
        """Remove the content, `sent`, the tool calls and `extra` of a message.

        Its `seq`, role, names, id and times stay, and its `tokens` become 0. The content becomes the text `(redacted)`,
        because providers refuse a prompt with an empty message; the content of a record becomes None. Copies in forks,
        summaries, backups and archives stay, except in `archive`.

        A store with `keep_removed` also keeps earlier versions of messages, and removed messages. The earlier versions
        are redacted too, and a removed message can be redacted. Suspensions that name calls of the message lose their
        state, reason and answer.

        Args:
            seq_or_id: The `seq` (an int) or the `id` (text) of the message to redact. An id also redacts removed
                messages that had it.
            reason: A reason to store in the message's `extra`, as `redacted`.
            archive: An archive in which to redact the message too. If the store has the message, only the archived copy
                of the same session is redacted. If it has not, the message is redacted only in the archive: of the
                sessions with this key that have the message, in the one that was archived last.

        Returns:
            The redacted message.

        Raises:
            SessionNotFound: The store has no such session, and the archive has no such message; nothing was changed.
            MessageNotFound: The session in the store has no such message, and neither has the archive; nothing was
                changed.
            InvalidFile: `archive` does not exist or is not an archive; nothing was changed.
        """
        message = maintenance.redact(self._context, self.key, seq_or_id, reason, archive)
        searching.drain(self._context)
        return message

    def drop_sent(self, *, before: int) -> int:
        """Delete the `sent` of earlier messages, so that prompts use their `content` again.

        Args:
            before: All messages of the log with a lower `seq` lose their `sent`.

        Returns:
            The number of messages that had a `sent`.
        """
        return self._context.transact_once(edits.drop_sent, self.key, before)

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

    def search(
        self,
        words: str,
        *,
        role: MessageRole | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 20,
        offset: int = 0,
    ) -> SearchPage:
        """Find messages of the session by their words, best matches first.

        Needs a search index: see `schema.enable_search`.

        Args:
            words: The words to find, as in `Store.search`. A message must contain all of them, in any order and case.
                `"two words"` in quotes is a phrase, `-word` excludes messages with this word, and `word*` is a prefix.
            role: Search only messages of this role: `model` counts as assistant, `function` as tool.
            since: Search only messages from this time on, an aware datetime.
            until: Search only messages before this time, an aware datetime.
            limit: The number of hits per page, 1 to 1,000. Defaults to 20.
            offset: The `next` of the previous page. Defaults to 0, the first page.

        Returns:
            A page of hits, as from `Store.search`.

        Raises:
            SearchUnavailable: The search index is missing, incomplete or damaged.
        """
        which: SearchFilters = {"role": role, "since": since, "until": until}
        return self._context.trying(lambda: searching.find(self._context, words, limit, offset, which, self.key))

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
            create: Create the session if it does not exist, or replace it if it has expired, in the same transaction.
            ttl: The TTL of the session that `create=True` creates. Defaults to the store's `default_ttl`.
            session_metadata: The `metadata` of the session that `create=True` creates.
            **fields: Other fields of the session that `create=True` creates, as in `append_message`.

        Returns:
            The stored turn with its messages.

        Raises:
            Conflict: `after` or `expect` does not match. With `create=True`, a missing or expired session matches no
                `expect`, and no `after` above 0. Nothing was written.
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
            self._context.expected(self.key, after, expect),
            make,
            functools.partial(turns.save, turn=turn),
            functools.partial(turns.save_new, turn=turn),
            has_ids=turn.id is not None,
        )

    def turns(self) -> list[Turn]:
        """List the turns and compactions, oldest first, without their messages."""
        return self._read_part(turns.read)

    def find_turn(self, id: str) -> Turn | None:
        """Return the turn with this id, without its messages.

        Args:
            id: The id that was passed to `save_turn` or `turn`.

        Returns:
            The turn, or None if the session has no turn with this id.
        """
        return self._read_part(turns.find, id)

    def messages_of(self, turn: Turn) -> list[Message]:
        """Read the messages of a turn, without those that were deleted.

        Args:
            turn: A turn that `turns`, `find_turn` or `save_turn` returned. If it is a compaction, its messages are the
                summary.

        Raises:
            TypeError: `turn` is not a `Turn`.
        """
        if not isinstance(turn, Turn):
            raise TypeError(f"turn is {type(turn).__name__}: give a Turn, such as find_turn({quoted(turn)})")
        return self._read_part(turns.messages_of, turn)

    def event_count(self) -> int:
        """Count the turns and compactions."""
        return self.info().turn_count

    def total_usage(self, *, children: bool = False) -> dict[str, Any]:
        """Add up the usage of all turns and compactions.

        Args:
            children: Also add the turns of all live descendants of the session.

        Returns:
            A dict with all usage fields: the sum of each field with numbers, the latest value of any other field.
        """

        def read(connection: sa.Connection, now: Moment) -> dict[str, Any]:
            sessions.row_of(connection, now, self.key)
            descendants = lists.keys(connection, now, Filter(key_prefix=levels.below(self.key))) if children else []
            return total(usage for key in (self.key, *descendants) for usage in turns.usages(connection, key))

        return self._context.read_together(read)

    # Turns in progress

    def turn(
        self,
        id: str | None = None,
        *,
        lease: timedelta = timedelta(minutes=2),
        wait: timedelta | None = None,
        flush: timedelta = timedelta(milliseconds=250),
    ) -> RunningTurn:
        """Return a context manager for a turn, which excludes other turns of the session.

        Entering the block takes the lease of the session, and leaving the block saves the turn. See `RunningTurn`. The
        lease excludes only other turns: other processes can still read the session, append messages and call `enqueue`.

        Args:
            id: Your id of the turn, such as the id of the request; 1 to 512 bytes in UTF-8. If a turn with this id is
                already stored, `replayed` is True in the block. Defaults to a new UUIDv7.
            lease: How long the lease lasts after the last write of the turn, 1 ms to 1 day. After that, another turn
                may take over. Defaults to 2 minutes. A lease does not keep the session from expiring.
            wait: How long to wait for another turn of the session, or for its lease, to end; up to 1 day. Defaults to
                not waiting.
            flush: How long to collect pieces of a draft before they are stored, up to 1 day. Defaults to 250 ms.

        Raises:
            TurnInProgress: On entering the block: another turn has the lease.
            LangoStoreError: The conversation belongs to a transaction (`Store.using`, `transaction` or `transact`),
                which would hide the lease from other processes.

        Example:
            ```python
            with conversation.turn("request-17") as turn:
                if not turn.replayed:
                    turn.append(Message.user("Hello"))
                    for piece in model(conversation.history()):
                        turn.write(piece)
                    turn.append(Message.assistant(turn.draft_text))
            ```
        """
        return RunningTurn(self._context, self.key, id, lease, wait, flush)

    def open_turn(self) -> OpenTurn | None:
        """Return the session's turn that has begun and not ended, or None.

        `held` of the turn is False if its lease has ended, because its process died, was paused, or wrote nothing for
        too long.
        """
        return self._context.on_primary().read(leases.find, self.key)

    def release_turn(self) -> OpenTurn | None:
        """Release the lease of the turn in progress, so that another turn can begin at once.

        If the process of the turn still runs, its next write raises `LeaseLost`. Only the result of a call that it has
        begun can still be stored.

        Returns:
            The turn as it was before the release, or None if there was none.
        """
        return self._context.transact(leases.release_any, self.key)

    def drafts(self) -> list[Draft]:
        """List the drafts of the session, oldest first.

        A draft is text that a turn has streamed with `RunningTurn.write` and not appended. The list includes the draft
        of a turn in progress. Saving a turn deletes its drafts.
        """
        return self._context.on_primary().read_together(drafts.read, self.key)

    def keep_draft(self, id: str) -> Message:
        """Append a draft to the log as an interrupted answer, and delete the draft.

        Args:
            id: The id of the draft.

        Returns:
            The stored message: an assistant message whose `extra` has `"interrupted": true`.

        Raises:
            TurnInProgress: The turn that writes the draft still has the lease; nothing was written.
            LangoStoreError: The session has no such draft; nothing was written.
        """
        return self._context.transact(drafts.keep, self.key, id, lambda answer: self._context.batch([answer]))

    def drop_draft(self, id: str) -> bool:
        """Delete a draft.

        Args:
            id: The id of the draft.

        Returns:
            True if the draft existed, otherwise False.

        Raises:
            TurnInProgress: The turn that writes the draft still has the lease; nothing was deleted.
        """
        return self._context.transact(drafts.drop, self.key, id)

    def enqueue(self, message: Message) -> Message:
        """Store a message in the inbox of the session, for example while a turn is running.

        The message is not in the log and not in the window until a turn calls `RunningTurn.inbox`, which moves it to
        the log. Like an append, this sets `updated_at` and restarts the session's TTL, but `revision` does not change.

        Args:
            message: The message to store. A message whose `id` is in the inbox or in the log already is not stored
                again; the stored one is returned with `replayed=True`.

        Returns:
            The stored message. Its `seq` is 0 until it is in the log. A message without an id gets one from
            `RunningTurn.inbox`.

        Raises:
            InvalidMessage: The message cannot be stored losslessly; nothing was written.
        """
        new = Batch([self._context.counted(message)])
        run = self._context.transact if new.ids else self._context.transact_once
        return run(inbox.enqueue, self.key, new)

    def inbox(self) -> list[Message]:
        """List the messages of the inbox in the order of their arrival. Their `seq` is 0."""
        return self._context.on_primary().read_together(inbox.read, self.key)

    # Tool calls and suspensions

    def begin_call(
        self,
        seq: int,
        position: int,
        *,
        limit: timedelta = timedelta(minutes=2),
        wait: timedelta | None = None,
        idempotent: bool = False,
    ) -> Effect:
        """Record that a tool call begins, before the tool runs.

        If several processes begin a call at the same time, one succeeds. If the call already has a result, the returned
        effect has `replayed=True` and the stored message as its `result`: do not run the tool. `RunningTurn.call` does
        the same in a turn.

        Args:
            seq: The `seq` of the assistant message that asks for the call. A stored result, which may have
                `tool_calls` too, is refused.
            position: The position of the call in the `tool_calls` of the message, from 0. It identifies the call,
                because ids of calls are not unique in a session.
            limit: How long the call may run before it becomes unknown, 1 ms to 1 day. A later result is still stored,
                unless the call was resolved or begun again. Defaults to 2 minutes.
            wait: If the call may still be running, how long to wait for its result or its time limit, up to 1 day.
                Defaults to not waiting.
            idempotent: Run a call that is unknown again, with the same `Effect.key`. Pass True only if the tool honors
                the key or changes nothing. Defaults to False.

        Returns:
            The effect, for `finish_call`.

        Raises:
            CallUnknown: The call is unknown (its time limit passed without a result, or its result was deleted), and
                `idempotent` is False; nothing was written.
            CallInProgress: The call was begun before and has no result, and its time limit has not passed, so it may
                still be running; nothing was written.
            LangoStoreError: The session has no such call, or the message does not ask for it; or the conversation
                belongs to a transaction (`Store.using`, `transaction` or `transact`), so that the beginning could not
                be stored before the tool runs.

        Example:
            ```python
            effect = conversation.begin_call(asking.seq, 0)
            if not effect.replayed:
                conversation.finish_call(effect, pay(effect.call.arguments, idempotency_key=effect.key))
            ```
        """
        place = Place(self.key, seq, position)
        return effects.begin(self._context, place, limit, wait or timedelta(0), idempotent=idempotent)

    def finish_call(self, effect: Effect, output: Any = UNSET, *, failed: str | None = None) -> Message:
        """Append the result of a call, and record the end of the call, in one transaction.

        Args:
            effect: The result of `begin_call`.
            output: The output of the tool: text, which becomes the content of the message, or any other JSON. Pass
                either `output` or `failed`.
            failed: An error text, if the tool failed and had no effect. `extra` of the message then has `"failed":
                true`.

        Returns:
            The stored tool message; for an effect with `replayed=True`, its `result`.

        Raises:
            Conflict: The call was resolved or begun again, or its message was removed; nothing was written.
            InvalidMessage: The output cannot be stored losslessly; nothing was written.
            ValueError: The effect belongs to another session.
            TypeError: Both or neither of `output` and `failed` were passed.
        """
        if effect._place.key != self.key:
            raise ValueError("the effect belongs to another session: call finish_call on its conversation")
        return effects.finish(self._context, effect, output, failed)

    def calls(self) -> list[BegunCall]:
        """List the tool calls that were begun, in the order of their messages."""
        return self._context.on_primary().read_together(calls.read, self.key)

    def resolve_call(
        self, seq: int, position: int, *, output: Any = UNSET, failed: str | None = None, retry: bool = False
    ) -> Message | None:
        """Record the outcome of an unknown tool call.

        Pass exactly one of `output`, `failed` and `retry=True`.

        Args:
            seq: The `seq` of the message that asks for the call.
            position: The position of the call in the `tool_calls` of the message, from 0.
            output: The output, if the tool has run: text or any other JSON. It is appended as the result of the call.
            failed: An error text, if the tool failed. It is appended as the result of the call.
            retry: True if the tool has not run: the call may then be begun again, with the same `Effect.key`.

        Returns:
            The stored result; None with `retry`.

        Raises:
            CallInProgress: The time limit of the call has not passed, so it may still be running; nothing was written.
            LangoStoreError: There is no such call, or it was never begun, or it has a result; nothing was written.
            InvalidMessage: The output cannot be stored losslessly; nothing was written.
        """
        if retry and (output is not UNSET or failed is not None):
            raise TypeError("retry=True means that the tool has not run: do not pass output or failed as well")

        def result(call: ToolCall) -> Batch:
            return self._context.batch([effects.result_message(call, output, failed)])

        return self._context.transact_once(calls.resolve, Place(self.key, seq, position), None if retry else result)

    def suspend(
        self,
        calls: Sequence[tuple[int, int]] = (),
        *,
        state: Any = None,
        reason: str | None = None,
        ttl: timedelta | None = None,
    ) -> Suspension:
        """Store a request for an answer from outside the program, such as an approval.

        `Store.resume` stores the answer, and returns the `state` to continue from.

        Args:
            calls: The tool calls that wait for the answer, all of one message: pairs of the message's `seq` and the
                position of the call. Defaults to none.
            state: Any JSON that the program needs to continue, such as the run state of an agent framework.
            reason: The text of the question.
            ttl: How long the suspension can be answered, up to 100 years. Defaults to as long as the session is live.

        Returns:
            The suspension with its `token`. Anyone who has the token can answer. No other method returns the token.

        Raises:
            InvalidValue: `state` or `reason` cannot be stored losslessly; nothing was written.
            LangoStoreError: The session has no such call, or the message does not ask for it; nothing was written.
            ValueError: `calls` are calls of several messages, or `ttl` is out of range.

        Example:
            ```python
            suspension = conversation.suspend([(asking.seq, 0)], reason="Pay 40 euros?")
            send_to_approver(suspension.token)
            ```
        """
        new = suspensions.New(self.key, calls, state, reason, ttl)
        return self._context.transact(suspensions.suspend, new)

    def suspensions(self) -> list[Suspension]:
        """List the suspensions of the session, answered or not, the oldest first."""
        return self._context.on_primary().read_together(suspensions.read, self.key)

    def resume(self, id: str, answer: Any) -> Suspension:
        """Answer a suspension by its id instead of its token; see `Store.resume`.

        Args:
            id: The id of the suspension. The id is not secret: backups contain it, for example. So do not accept an id
                from outside as a permission to answer.
            answer: Any JSON.

        Returns:
            The suspension with the answer, its calls and its state, to continue from.

        Raises:
            AlreadyResumed: The suspension was answered before; `answer` of the exception is that answer.
            SuspensionExpired: The suspension's TTL has passed; nothing was written.
            SuspensionNotFound: The session has no such suspension; nothing was written.
            InvalidValue: The answer cannot be stored losslessly; nothing was written.
        """
        given = str(encode_id(id)), encode_json(answer, "answer")
        return self._context.transact_once(suspensions.resume, self.key, *given)

    def delete_suspension(self, id: str) -> bool:
        """Delete a suspension of the session, with its state, reason and answer. Its token then answers nothing.

        Args:
            id: The id of the suspension, answered or not.

        Returns:
            True if the session had this suspension.

        Raises:
            SessionNotFound: There is no such session; nothing was deleted.
        """
        return self._context.transact(suspensions.delete, self.key, str(encode_id(id)))

    # Values

    def values(self, prefix: str | None = None) -> dict[str, Any]:
        """Read the values of the session.

        Args:
            prefix: Only values whose name starts with this text. Defaults to all values.

        Returns:
            The values by name, in the order of their names.
        """
        return self._context.read(named_values.read, self.key, prefix)

    def set_values(self, values: dict[str, Any]) -> None:
        """Set values of the session, all or none. Values with other names do not change.

        Args:
            values: JSON by name; None is a value too. A name has 1 to 512 characters, and at most 2,600 bytes in UTF-8
                together with the key.

        Raises:
            InvalidKey: A name is invalid; nothing was written.
            InvalidValue: A value is not JSON; nothing was written.
        """
        self._context.write(named_values.write, self.key, named_values.encode_values(self.key, values))

    def drop_values(self, names: Sequence[str] | None = None) -> int:
        """Delete values of the session.

        Args:
            names: The names of the values to delete. Defaults to all values.

        Returns:
            The number of deleted values.
        """
        return self._context.transact_once(named_values.drop, self.key, names)

    # Children, branches and summaries

    def child(
        self,
        name: str,
        *,
        ttl: timedelta | None | Unset = UNSET,
        renew: bool = False,
        **fields: Unpack[SessionFields],
    ) -> Conversation:
        """Return a `Conversation` for a child session, and create the child if necessary.

        Use a child session for a subagent. Its key is the key of this session, "/" and the name.

        Args:
            name: The name of the child, without "/".
            ttl: The TTL of a new child session, as in `Store.create`. Defaults to the TTL of this session.
            renew: Replace an expired child session with a new one instead of raising `SessionExpired`.
            **fields: Fields of a new child session, as in `Store.create`. `user_id` defaults to that of this session.

        Raises:
            SessionNotFound: This session does not exist; nothing was written.
            SessionExpired: This session has expired, or the child session has and `renew` is False; nothing was
                written.
            InvalidKey: `name` is empty or contains "/", or the key would be too long; nothing was written.
        """
        key = lifecycle.open_child(self._context, self.key, name, ttl, fields, renew=renew)
        return Conversation(self._context, key)

    def children(self) -> list[SessionInfo]:
        """List the live child sessions in the order of their keys, without their own children.

        `Store.iter_sessions(key_prefix=f"{key}/")` lists all descendants.
        """
        chosen = Filter(level=self.key.count("/") + 1, key_prefix=levels.below(self.key))

        def read(connection: sa.Connection, now: Moment) -> list[SessionInfo]:
            sessions.row_of(connection, now, self.key)
            pages = lists.pages(
                lambda after: lists.walk(connection, now, chosen, after, lists.MAX_PAGE), lists.MAX_PAGE
            )
            return [info for page in pages for info in page]

        return self._context.read_together(read)

    def fork(
        self,
        key: str | None = None,
        *,
        upto: int | None = None,
        as_of: int | datetime | None = None,
        ttl: timedelta | None | Unset = UNSET,
    ) -> Conversation:
        """Copy the session to another key.

        The copy has the messages, turns, values and fields, but not the inbox, drafts, begun calls and suspensions. Its
        `SessionInfo.forked_from` names this session.

        Args:
            key: The key of the copy. Defaults to a new UUIDv7.
            upto: Copy only messages with a `seq` up to this value, and turns that end at or before it. A summary is
                copied only if it covers no later message. Defaults to the whole log.
            as_of: Copy the log of an earlier moment, as in `get`: a `seq` or an aware datetime. Cannot be combined with
                `upto`.
            ttl: The TTL of the copy, which starts now. Defaults to the TTL of this session.

        Returns:
            The copy.

        Raises:
            SessionExists: A session with this key exists, live or expired; nothing was written.
            InvalidCut: A compaction discarded messages up to a `seq` above `upto`, so the log as it was at `upto` no
                longer exists; nothing was written.
            NotKept: There was a cut, edit or compaction since `as_of`, and what it removed or replaced is not kept;
                nothing was written.
        """
        if upto is not None and as_of is not None:
            raise TypeError("upto cuts the present log, and as_of copies an earlier one: give one of them")
        new = self._context.new_id() if key is None else key
        lifecycle.fork(self._context, self.key, new, own_key=key is None, upto=upto, as_of=as_of, ttl=ttl)
        return Conversation(self._context, new)

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
        pending = self.begin_compaction()
        if pending is None:
            return None
        return self.finish_compaction(pending, summarize(summarizer, pending.window), discard=discard)

    def begin_compaction(self, *, records: bool = False) -> PendingCompaction | None:
        """Read the window for a compaction: the first half of `compact`.

        Use it if a single function call cannot produce the summary.

        Args:
            records: Also read the records between the messages.

        Returns:
            The pending compaction with the messages in `window`, or None if the window is empty.
        """
        pending = self._context.on_primary().read(turns.begin_compaction, self.key, records=records)
        return pending if pending.session.messages else None

    def finish_compaction(self, pending: PendingCompaction, summary: Summary, *, discard: bool = False) -> Compaction:
        """Replace a window with a summary: the second half of `compact`.

        Args:
            pending: The result of `begin_compaction`.
            summary: A `Message`, or a list of messages.
            discard: Delete the replaced messages from the log, as in `compact`.

        Returns:
            The compaction.

        Raises:
            Conflict: The session was compacted, or messages were edited or removed, since `begin_compaction`; nothing
                was changed.
            InvalidMessage: A message of the summary cannot be stored losslessly; nothing was changed.
        """
        new = appending.encoded(self._context, [summary] if isinstance(summary, Message) else summary)
        return self._context.transact(turns.finish_compaction, pending, new, discard=discard)

    def compactions(self) -> list[Compaction]:
        """List the compactions, oldest first, with their summaries."""
        return self._context.read_together(turns.compactions, self.key)

    # Changes

    def changes(self, *, after: int = 0) -> list[Change]:
        """List the changes of the log, oldest first: cuts, edits, compactions, undos and redos.

        Args:
            after: Only changes with a `seq` above this value. Defaults to 0, all changes.
        """
        return self._context.read_together(history.changes, self.key, after)

    def undo(self) -> Undone | None:
        """Take back the last cut, edit, replacement (`replace_after`) or compaction.

        A second `undo` takes back the change before that, and so on; `redo` reverses the last undo. Messages that were
        appended after the change stay. Redactions and `drop_sent` are never taken back. Begun calls and suspensions
        that the change deleted are not restored, so a tool of a restored message may run again.

        Returns:
            The change that was taken back, and the numbers of restored and removed messages; None if there is no such
            change.

        Raises:
            NotKept: The messages that the change removed or replaced are not kept: see `Store(keep_removed=…)`. Nothing
                was written.
            Conflict: The id of a removed message or turn was used again; nothing was written.
        """
        return self._context.transact_once(history.undo, self.key)

    def redo(self) -> Undone | None:
        """Take back the last undo, unless another change followed it.

        Returns:
            The undo that was taken back, and the numbers of restored and removed messages; None if there is no such
            undo.

        Raises:
            NotKept: The messages that the undo removed are no longer kept; nothing was written.
            Conflict: The id of a removed message or turn was used again; nothing was written.
        """
        return self._context.transact_once(history.redo, self.key)

    def diff(self, a: int | datetime, b: int | datetime) -> Diff:
        """Compare the logs of two moments.

        Args:
            a: The first moment: a `seq`, or an aware datetime, as `as_of` in `get`.
            b: The second moment, which may be earlier.

        Raises:
            NotKept: There was a cut, edit or compaction since the earlier moment, and what it removed or replaced is
                not kept.
        """
        return self._context.read_together(history.diff, self.key, a, b)

    # The prompt

    def history(
        self,
        *,
        format: window.Format = "openai",
        last: int | None = None,
        max_tokens: int | None = None,
        step: int | None = None,
        step_tokens: int | None = None,
        from_consolidated: bool = False,
        nested: bool = True,
        unanswered: Literal["close", "keep"] = "close",
    ) -> window.Prompt:
        """Return the end of the window as a prompt: dicts in the form that chat APIs take.

        After any leading system messages, a prompt without a summary starts with a user message, if it has one. No
        prompt has a tool result whose call is missing. The result of a call that was begun follows the message that
        asks for the call, even if ids of calls are not unique. `window.as_prompt` lists what a chat API may still
        refuse.

        Args:
            last: The maximum number of messages. Defaults to no limit.
            max_tokens: The maximum number of tokens. Needs messages with `tokens`, or a store with a `token_counter`.
                Defaults to no limit.
            step: With `last`: if the window is longer, start the prompt after a `seq` that is a multiple of this
                number. The start then moves rarely, so that a provider's cache recognizes the prompt. The prompt has up
                to `last + step - 1` messages.
            step_tokens: With `max_tokens`: as `step`, but the start moves at multiples of this many tokens. May not
                exceed `max_tokens`. Needs messages with `tokens`.
            from_consolidated: Leave out the first `last_consolidated` messages of the session. Your application sets
                this number with `update` when a memory outside the store has processed these messages.
            nested: True (default) returns tool calls in OpenAI's nested form, and contents unchanged. With False, tool
                calls are flat, and contents that consist only of text blocks become text.
            unanswered: "close" (default) adds two kinds of messages: for each tool call without a result, a result
                which says that the tool did not finish; and after an interrupted answer, a user message, if none
                follows. The added messages are not stored, and no limit counts them. "keep" adds none.

        Returns:
            One dict for each message, or for each output of a tool, with `role`, `content`, and, if set, `tool_calls`,
            `tool_call_id` and `name`. If a message has a `sent`, it is the content.

        Raises:
            ValueError: A limit or a step is invalid, or a message has no token count.
        """
        budget = prompts.Budget(last, max_tokens, step, step_tokens)
        several = from_consolidated or max_tokens is not None
        read = self._context.read_together if several else self._context.read
        chosen, recorded = read(
            prompts.history,
            self.key,
            budget,
            from_consolidated=from_consolidated,
            count=self._context.token_counter,
        )
        return window.prompt(chosen, format, nested=nested, unanswered=unanswered, recorded=recorded)

    # Helpers

    def _message_pages(self, after: int, before: int | None, size: int) -> Iterator[list[Message]]:
        chosen = Range(after, log.MAX_SEQ if before is None else before)
        return log.pages(lambda part: self._context.read(log.read, self.key, part), chosen, size)

    def _reading(self, expired: bool) -> Context:
        return self._context.ignoring_expiry() if expired else self._context

    def _read_part(
        self, operation: Callable[Concatenate[sa.Connection, str, P], R], *args: P.args, **options: P.kwargs
    ) -> R:
        """Run an operation that reads a part of the session; raise an error if the session is not live."""

        def read(connection: sa.Connection, now: Moment) -> R:
            sessions.row_of(connection, now, self.key)
            return operation(connection, self.key, *args, **options)

        return self._context.read_together(read)
