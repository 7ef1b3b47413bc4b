"""One session as an agent holds it: its key is all it remembers, so that any number of handles see the same.

All its verbs are in this file, where they are looked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

import sqlalchemy as sa

from lango_store import window
from lango_store._connections.context import Context
from lango_store._dialect import Moment
from lango_store._operations import edits, levels, lists, prompts, removals, sessions, turns
from lango_store._operations import messages as log
from lango_store._operations import values as named_values
from lango_store._operations.lists import Filter
from lango_store._operations.messages import Damaged, Range
from lango_store._operations.search import SearchFilters
from lango_store._operations.sessions import Expected
from lango_store._operations.turns import PendingCompaction
from lango_store._rows.encoding import encode_role
from lango_store._services import appending, lifecycle, maintenance, searching
from lango_store._values.model import (
    UNSET,
    Compaction,
    Message,
    MessageRole,
    OwnFields,
    SessionChanges,
    SessionFields,
    SessionInfo,
    Turn,
    Unset,
)
from lango_store._values.reports import SearchPage
from lango_store._values.session import Session
from lango_store._values.summarizer import Summarizer, Summary, summarize
from lango_store._values.usage import total
from lango_store.errors import DamagedMessage, InvalidMessage, UniqueViolation, quoted

P = ParamSpec("P")
R = TypeVar("R")


class Conversation:
    """A handle of one session. `Store.open` gives it; it holds no copy of anything.

    Whatever it gives is yours: changing it changes nothing that is stored. Everything may raise `SessionNotFound` and
    `SessionExpired`, and what `Store` says of its verbs.
    """

    __slots__ = ("_context", "key")

    def __init__(self, context: Context, key: str) -> None:
        self._context = context
        self.key = key

    def __repr__(self) -> str:
        return f"Conversation({self.key!r})"

    # The session

    def get(self, *, expired: bool = False, records: bool = False) -> Session:
        """Load the session and the messages of its window; with `expired`, past its TTL too, and it stays so.

        With `records`, the records between the messages are loaded too.
        """
        return self._reading(expired).read(log.load, self.key, records=records)

    def info(self, *, expired: bool = False) -> SessionInfo:
        """Load the session without its messages: title, settings, counters, times; `expired` as in `get`."""
        return self._reading(expired).read(sessions.info, self.key)

    def update(
        self, *, activity: bool = False, expect: int | None = None, **changes: Unpack[SessionChanges]
    ) -> SessionInfo:
        """Change fields of the session; omitted ones stay, None clears one. See `Store.update`."""
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
        """Append a message, and return it with its `seq` and `created_at`; see `Store.append_message`."""
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
        """Append messages, all or none; `replace_after` first deletes everything after that `seq`.

        The log then holds the messages up to it (see `truncate`) and these. Sent again with ids, a message that
        is already at its place is returned as `replayed`. Ids of deleted messages are free again; a message whose id
        remains in the log is not moved, and returned as `replayed`. A retry deletes messages that others appended in
        between; with `after` it raises `Conflict` instead.
        """
        return appending.append(self._context, self.key, messages, replace_after, after, expect, create, ttl, fields)

    def messages(self, *, last: int | None = None, records: bool = False) -> list[Message]:
        """Read the window: the summary if there is one, then every later message; or the last messages of it.

        With `records`, the records between them too, which count for `last`.
        """
        if last is None:
            return self.get(records=records).messages
        log.check_count("last", last)
        return self._context.read(log.tail, self.key, last, records=records)[0]

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
    ) -> Any:
        """Read the log, records too: messages with `after < seq < before`, of these the first `limit` or the `last`.

        With `damaged="return"`, the list holds a `DamagedMessage` for each row that cannot be read, and every other
        message. By default the first such row raises it. `expired` as in `get`.
        """
        chosen = Range(after, log.MAX_SEQ if before is None else before, limit, last)
        return self._reading(expired).read(log.read, self.key, chosen, damaged)

    def iter_messages(self, *, after: int = 0, before: int | None = None, page_size: int = 500) -> Iterator[Message]:
        """Read the log message by message, however long, a page in memory and no connection held in between."""
        return (message for page in self._message_pages(after, before, page_size) for message in page)

    def find_message(self, id: str) -> Message | None:
        """Return the message with an `id`; None if the session has none."""
        return self._context.read(log.find, self.key, id)

    def last_message(self, role: MessageRole | str | None = None) -> Message | None:
        """Return the last message, or the last one of a role (`model` counts as assistant, `function` as tool).

        Summaries and records are skipped. None if no message has that role. Messages are read from the end until one is
        found: without that role in a session of a million messages, it takes about a second.
        """
        wanted = None if role is None else MessageRole(encode_role(role))
        return self._context.read_together(log.last_of, self.key, wanted)

    def pop_message(self, *, records: bool = False) -> Message | None:
        """Remove the last message of the window and return it; None if there is none.

        With `records`, the last of the log, whether it is a message or a record. When the last message of a summary
        goes, what it replaced is in the window again, unless `compact` discarded that.
        """
        return self._context.remove(edits.pop, self.key, records=records)

    def update_message(self, seq_or_id: int | str, message: Message, *, expect: int | None = None) -> Message:
        """Put a message in the place of the one with this `seq` or id, and return it as stored.

        It has the other's `seq` and turn, and its id and `created_at` unless it brings its own. `MessageNotFound` if
        there is no such message, `InvalidMessage` if another one has its id, or if a message of a summary would become
        a record. An id that it had before is free again: a late retry of the append that wrote it is written. `expect`
        as in `update`.
        """
        message = self._context.counted(message)
        try:
            return self._context.transact(edits.update, self.key, seq_or_id, message, Expected(revision=expect))
        except UniqueViolation as error:
            reason = f"{quoted(message.id)} is the id of another message: give another, or None for the one it has"
            raise InvalidMessage("id", reason) from error

    def delete_message(self, seq_or_id: int | str, *, expect: int | None = None) -> None:
        """Delete the message with this `seq` or id, wherever in the log it is; `MessageNotFound` if there is none.

        Its turn keeps its usage, and summaries that cover the message stay. The last message of a summary goes as by
        `pop_message`. The id is free again. `expect` as in `update`.
        """
        self._context.remove(edits.delete, self.key, seq_or_id, Expected(revision=expect))

    def redact_message(
        self,
        seq_or_id: int | str,
        *,
        reason: str | None = None,
        archive: str | Path | None = None,
    ) -> Message:
        """Remove content, tool calls and extra from the message with this `seq` or id, and return the redacted message.

        The content of a summary becomes the text `(redacted)`, since providers refuse a prompt with an empty message.
        Position, role, names, id and times stay; a `reason` is kept in `extra`, as `redacted`. In an `archive` the
        message is redacted too: in the life of the session that the store has, or, if it is not in the store, in the
        latest one that has it. `SessionNotFound` or `MessageNotFound` if it is in neither. Forks, summaries, backups
        and other archives keep their copies.
        """
        message = maintenance.redact(self._context, self.key, seq_or_id, reason, archive)
        searching.drain(self._context)
        return message

    def drop_sent(self, *, before: int) -> int:
        """Delete the `sent` of earlier messages, so that later prompts have their `content` instead.

        Args:
            before: Messages with a lower `seq` lose their `sent`, in the log and not only in the window.

        Returns:
            The number of messages that had a `sent`.
        """
        return self._context.remove(edits.drop_sent, self.key, before)

    def truncate(self, *, after: int) -> int:
        """Delete the messages with a `seq` above `after` and the turns that began there; return how many messages.

        Records above `after` are deleted too, and not counted. A summary is deleted, whole, only if it covers messages
        above `after`, whatever its own `seq`; the messages up to `after` are then in the window again. If they were
        discarded, `InvalidCut` is raised and nothing changes. 0 deletes everything.
        """
        return self._context.remove(removals.truncate, self.key, after)

    def clear(self, *, keep_system: bool = False) -> int:
        """Delete the messages, with `keep_system` all but those of role system; return how many.

        Turns, records and the summary are deleted too, `last_consolidated` is 0 again, and `seq` is not reset.
        """
        return self._context.remove(removals.clear, self.key, keep_system=keep_system)

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
        """Find messages of the session by their words, the best first; see `Store.search`."""
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
        after: int | None = None,
        expect: int | None = None,
        create: bool = False,
        ttl: timedelta | None | Unset = UNSET,
        session_metadata: dict[str, Any] | None = None,
        **fields: Unpack[OwnFields],
    ) -> Turn:
        """Append the messages of a turn and what it cost, all or nothing; a turn may have no messages.

        A question that was stored before, and is given again with its id in front of the answer, becomes part of the
        turn if it is the last message of the log and belongs to no turn; other stored messages stay outside.

        `usage` is any dict of JSON, stored unchanged. A turn whose `id` is stored is not written again: the stored turn
        is returned as `replayed`, and so is a turn without an id if the ids of all its messages are stored. If these
        messages were appended outside a turn, the first call writes a turn without messages that has their usage and
        an id made from theirs. `after`, `expect` and `create` are those of `append_message`; the session's metadata is
        `session_metadata` here.
        """
        about = SessionFields(**fields, metadata=session_metadata)
        make = appending.missing(self._context, self.key, create, ttl, about)
        new = appending.encoded(self._context, messages)
        if id is None and self._context.gives_ids and (not messages or any(each.id is None for each in messages)):
            id = self._context.new_id()  # else the ids of its messages tell
        turn = turns.new_turn(id, usage, metadata)
        return appending.append_with_retry(
            self._context,
            self.key,
            new,
            Expected(after, expect),
            make,
            functools.partial(turns.save, turn=turn),
            functools.partial(turns.save_new, turn=turn),
            has_ids=turn.id is not None,
        )

    def turns(self) -> list[Turn]:
        """List the turns and compactions, the first one first, without their messages."""
        return self._read_part(turns.read)

    def find_turn(self, id: str) -> Turn | None:
        """Return the turn with an `id`, without its messages; None if the session has none."""
        return self._read_part(turns.find, id)

    def messages_of(self, turn: Turn) -> list[Message]:
        """Read the messages of a turn or of a compaction, without those that were deleted."""
        return self._read_part(turns.messages_of, turn)

    def event_count(self) -> int:
        """Count the turns and compactions."""
        return self.info().turn_count

    def total_usage(self, *, children: bool = False) -> dict[str, Any]:
        """Return the usage of all turns, compacted ones too: the sum of numbers, the last of all other values.

        With `children`, the turns of all live descendants are added.
        """

        def read(connection: sa.Connection, now: Moment) -> dict[str, Any]:
            sessions.row_of(connection, now, self.key)
            descendants = lists.keys(connection, now, Filter(key_prefix=levels.below(self.key))) if children else []
            return total(usage for key in (self.key, *descendants) for usage in turns.usages(connection, key))

        return self._context.read_together(read)

    # Values

    def values(self, prefix: str | None = None) -> dict[str, Any]:
        """Return the session's values by name, in the order of their names; with a `prefix`, those that begin so."""
        return self._context.read(named_values.read, self.key, prefix)

    def set_values(self, values: dict[str, Any]) -> None:
        """Set values of the session by name, all or none; see `Store.set_values`."""
        self._context.write(named_values.write, self.key, named_values.encode_values(self.key, values))

    def drop_values(self, names: Sequence[str] | None = None) -> int:
        """Delete values of the session by name, or all of them; return how many there were."""
        return self._context.remove(named_values.drop, self.key, names)

    # Children, branches and summaries

    def child(
        self,
        name: str,
        *,
        ttl: timedelta | None | Unset = UNSET,
        renew: bool = False,
        **fields: Unpack[SessionFields],
    ) -> Conversation:
        """Return a `Conversation` for a child session, and create the child session if it does not exist.

        Use a child session for a subagent. Its key is the key of this session, "/" and the name.

        Args:
            name: The name of the child, without "/".
            ttl: The TTL of a new child session, as in `Store.create`. Defaults to the TTL of this session.
            renew: Replace an expired child session by a new one instead of raising `SessionExpired`.
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
        ttl: timedelta | None | Unset = UNSET,
    ) -> Conversation:
        """Copy the session to another key, whole or up to a `seq`.

        The database makes the copy. It includes the turns that end by `upto`, names its origin in `forked_from` and
        starts a new TTL, of the same length unless given. Without a key it gets a new UUIDv7. A summary is copied under
        the conditions by which `truncate` keeps one. `SessionExists` if the key is taken.
        """
        new = self._context.new_id() if key is None else key
        lifecycle.fork(self._context, self.key, new, own_key=key is None, upto=upto, ttl=ttl)
        return Conversation(self._context, new)

    def compact(self, summarizer: Summarizer, *, discard: bool = False) -> Compaction | None:
        """Replace the window with a summary; None if the window is empty.

        `summarizer` takes the window's messages and returns those of the summary; it may be a coroutine function.
        Nothing is locked while it runs: messages appended in the meantime stay in the window, after the summary.
        `Conflict` if the session was compacted, cut or cleared in the meantime; then, and if `summarizer` raises,
        nothing changes. The replaced messages stay in the log; `discard` deletes them, but no records.
        """
        pending = self.begin_compaction()
        if pending is None:
            return None
        return self.finish_compaction(pending, summarize(summarizer, pending.window), discard=discard)

    def begin_compaction(self, *, records: bool = False) -> PendingCompaction | None:
        """Read the window, the first half of `compact`; None if it is empty. `records` as in `get`."""
        pending = self._context.on_primary().read(turns.begin_compaction, self.key, records=records)
        return pending if pending.session.messages else None

    def finish_compaction(self, pending: PendingCompaction, summary: Summary, *, discard: bool = False) -> Compaction:
        """Replace the window that was read with a summary, the second half of `compact`."""
        new = appending.encoded(self._context, [summary] if isinstance(summary, Message) else summary)
        return self._context.transact(turns.finish_compaction, pending, new, discard=discard)

    def compactions(self) -> list[Compaction]:
        """List the compactions, the first one first: each with its summary, what it replaced, and when."""
        return self._context.read_together(turns.compactions, self.key)

    # The prompt

    def history(
        self,
        *,
        last: int | None = None,
        max_tokens: int | None = None,
        step: int | None = None,
        step_tokens: int | None = None,
        from_consolidated: bool = False,
        nested: bool = True,
        unanswered: Literal["close", "keep"] = "close",
    ) -> list[dict[str, Any]]:
        """Return the end of the window as a model takes it: role, content, tool_calls, tool_call_id and name only.

        At most `last` messages and `max_tokens` tokens, the smaller of the two; `from_consolidated` leaves out the
        first `last_consolidated` messages of the session. It never begins with a tool's result whose call is missing,
        and begins with a user's message if it has one, apart from a summary and system messages in front. `nested` is
        OpenAI's form, with lists of blocks unchanged; else tool calls are flat, and blocks of text only become text.
        A tool call without a result, which chat APIs refuse, is followed by one that says that the tool did not finish;
        it is not stored, and counts in neither bound. With `unanswered="keep"` none is added. See `window.as_prompt`
        for what else a chat API refuses. ValueError if `max_tokens` meets a message without a count.
        """
        budget = prompts.Budget(last, max_tokens, step, step_tokens)
        if unanswered not in ("close", "keep"):
            raise ValueError(f'unanswered={unanswered!r}: give "close" or "keep"')
        several = from_consolidated or max_tokens is not None
        read = self._context.read_together if several else self._context.read
        chosen = read(
            prompts.history,
            self.key,
            budget,
            from_consolidated=from_consolidated,
            count=self._context.token_counter,
        )
        return window.as_prompt(window.close_calls(chosen) if unanswered == "close" else chosen, nested=nested)

    # Steps of more than one verb

    def _message_pages(self, after: int, before: int | None, size: int) -> Iterator[list[Message]]:
        chosen = Range(after, log.MAX_SEQ if before is None else before)
        return log.pages(lambda part: self._context.read(log.read, self.key, part), chosen, size)

    def _reading(self, expired: bool) -> Context:
        return self._context.ignoring_expiry() if expired else self._context

    def _read_part(
        self, operation: Callable[Concatenate[sa.Connection, str, P], R], *args: P.args, **options: P.kwargs
    ) -> R:
        """Run an operation that reads what belongs to the session, which has to exist."""

        def read(connection: sa.Connection, now: Moment) -> R:
            sessions.row_of(connection, now, self.key)
            return operation(connection, self.key, *args, **options)

        return self._context.read_together(read)
