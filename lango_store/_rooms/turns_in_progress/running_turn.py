"""A turn in progress: the block that `Conversation.turn` opens."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, Final, Self

from lango_store._connections import cancellation
from lango_store._connections.context import Context
from lango_store._operations.log import appends, removals
from lango_store._operations.log.messages import check_seq
from lango_store._operations.rows import encode_object
from lango_store._operations.session.sessions import Expected, check_duration
from lango_store._rooms.turns_in_progress import drafts, inbox, leases, running
from lango_store._rooms.turns_in_progress.drafts import INTERRUPTED
from lango_store._rooms.turns_in_progress.errors import TurnInProgress
from lango_store._rooms.turns_in_progress.leases import SHORTEST_LEASE, Lease, Retry, new_token
from lango_store._rooms.turns_in_progress.running import TurnLimit
from lango_store._rows.encoding import encode_id
from lango_store._services import appending
from lango_store._values.model import Message, Turn
from lango_store.errors import InvalidState, LangoStoreError, UniqueViolation, quoted
from lango_store.window import Prompt

logger = logging.getLogger(__name__)


class RunningTurn:
    """A turn in progress, without the methods that other rooms add."""

    attempt = 1
    _model: str | None = None  # of the last answer to a request
    _was_claimed = False  # by a worker, and has never begun before
    _needs_messages = False  # if it has taken some, or has never begun before, and no suspension was answered

    def __init__(
        self,
        context: Context,
        key: str,
        id: str | None,
        lease: timedelta,
        wait: timedelta | None,
        flush: timedelta,
        limit: TurnLimit | None = None,
        replace_after: int | None = None,
        keep: bool = False,
    ) -> None:
        if context.in_callers_transaction:
            raise InvalidState(
                "a turn needs its own transactions, because its lease must be visible to other processes at once: "
                "call turn() on the store, not on store.using() or in store.transact()"
            )
        if replace_after is not None:
            check_seq("replace_after", replace_after)
        elif keep:
            raise TypeError("keep needs replace_after: it keeps the messages that the turn replaces")
        check_duration("lease", lease, SHORTEST_LEASE)
        check_duration("flush", flush)
        self._is_new = id is None
        self._has_drafts = id is not None  # an earlier attempt may have stored some
        self.id: Final = context.new_id() if id is None else str(encode_id(id))
        self.key: Final = key
        self.replayed = False
        self.usage: dict[str, Any] | None = None
        self.metadata: dict[str, Any] | None = None
        self.stored: Turn | None = None
        self.lease: Final = Lease(new_token(), lease.total_seconds(), self.id)
        self._context: Final = context
        self._wait = check_duration("wait", wait).total_seconds() if wait else 0.0
        self._limit = limit
        cut = context.set_aside if keep else removals.cut
        self._replaced = None if replace_after is None else running.Replaced(replace_after, cut)
        self._flush_every = flush.total_seconds()
        self._has_begun = self._is_running = False
        self._process = os.getpid()
        self._expected: Final = Expected(guard=self.lease)
        self._ids: Final = running.new_ids(self.id, self.lease.token)
        self._earlier: list[Message] = []
        self._appended: dict[int, Message] = {}
        self._draft: Final = self.lease.draft
        self.stopped: Final[threading.Event] = self.lease.lost
        leases.OF_PROCESS[self.lease.token] = self.lease.lost

    @property
    def messages(self) -> list[Message]:
        """The messages of the turn in the log so far.

        If an attempt of the turn failed, the next attempt starts with the messages that the failed one took from the
        inbox or appended. Messages that the stores of `in_turn` append are added when the turn is saved.
        """
        if self.stored is not None:
            return self.stored.messages
        return [self._appended[seq] for seq in sorted(self._appended)]

    @property
    def draft_text(self) -> str:
        """The text that was passed to `write` since the last answer was appended."""
        return drafts.joined(self._draft.texts)

    # Begin

    def _tries(self) -> Iterator[float]:
        """Take the lease; yield the seconds to sleep before each new try while another turn has it."""
        if self._has_begun:
            raise InvalidState(f"turn {quoted(self.id)} can be entered only once: call turn() again")
        pauses, pause = None, None
        with self._context.telemetry.span("turn", self.key, is_current=False):
            while True:
                try:
                    if pause:  # one statement, while a try needs a transaction of several
                        self._context.on_primary().read(leases.check_free, self.key, self.id)
                    taken = self.key, self.id, self.lease
                    if self._limit is None and self._replaced is None:
                        self.stored, earlier = self._context.write(running.begin, *taken, is_new=self._is_new)
                    else:
                        # A second run could delete messages that were appended after the first one.
                        deletes = self._replaced is not None and self._replaced.cut is removals.cut
                        run = self._context.transact_once if deletes else self._context.transact
                        options = self._limit, self._replaced
                        self.stored, earlier = run(running.begin_with, *taken, *options, is_new=self._is_new)
                    break
                except TurnInProgress:
                    pauses = pauses or cancellation.pauses(self._wait)
                    if (pause := next(pauses, None)) is None:
                        raise
                yield pause
        self.replayed = self.stored is not None
        for message in earlier:
            self._appended[message.seq] = message
        self._earlier = earlier
        self._has_begun, self._is_running, self._process = True, not self.replayed, os.getpid()

    def begin(self) -> Self:
        """Take the lease, as entering the block does, and return the turn.

        Call `save` or `abandon` at the end of the turn.

        Raises:
            TurnInProgress: Another turn has the lease.
            BudgetExhausted: The turn has a budget into which its reservation does not fit.
            InvalidState: The turn was entered before.
        """
        for seconds in self._tries():
            cancellation.pause(seconds)
        return self

    __enter__ = begin

    # In the block

    def append(self, message: Message, *, request: Prompt | None = None) -> Message:
        """Append a message to the session at once, and extend the lease.

        A message without an id gets one. If an earlier attempt of the turn has stored an equal message, the stored
        message is returned with `replayed=True`. An assistant message ends the current draft, which is deleted.

        Args:
            message: The message to store.
            request: The prompt that the message answers, as in `Conversation.append_message`. The metadata of the turn
                gets the model of the last answer, for `Store.usage`, unless it has a `model`.

        Returns:
            The stored message with its `seq` and `created_at`.

        Raises:
            LeaseLost: The turn has lost the lease of the session; nothing was written.
            InvalidMessage: The message cannot be stored losslessly; nothing was written.
        """
        if request is None:
            return self.append_messages([message])[0]
        stored = self.append_messages([*request.notes, request.answered(message)])[-1]
        self._model = stored.model or self._model
        return stored

    def append_messages(self, messages: Sequence[Message], *, replace_after: int | None = None) -> list[Message]:
        """Append messages to the session, all or none, as `append` does.

        Args:
            messages: The messages to store.
            replace_after: First delete the messages with a `seq` above this value, in the same transaction, as
                `Conversation.append_messages` does.

        Returns:
            The stored messages, in the order of `messages`.

        Raises:
            LeaseLost: The turn has lost the lease of the session; nothing was written.
            InvalidMessage: A message cannot be stored losslessly; nothing was written.
            InvalidCut: A compaction discarded messages with a `seq` above `replace_after`; nothing was written.
        """
        if not self._is_running or self._process != os.getpid():
            self._check_running()
        if self._context.token_counter is not None:
            messages = [self._context.counted(message) for message in messages]
        new = running.with_ids(messages, self._ids, self._earlier, self._context.payload_threshold)
        try:
            if replace_after is not None:
                stored = self._context.transact(running.replace, self.key, new, self.lease, replace_after)
                if self.lease.needs_more(new.messages):
                    self.lease.note_more()
                self._appended = {seq: each for seq, each in self._appended.items() if seq <= replace_after}
            else:
                stored = appending.append_with_retry(
                    self._context, self.key, new, self._expected, None, appends.append, appends.append_new_ids
                )
        except LangoStoreError:  # if it was committed, a repeated append gets the same ids
            self._earlier += new.messages
            raise
        self._add(stored)
        return stored

    def take_inbox(self) -> list[Message]:
        """Move the messages of the session's inbox that are due to the log, as part of the turn.

        Returns:
            The messages with their new `seq`; empty if none arrived. Messages that a failed attempt of the turn has
            moved are in `messages` instead.

        Raises:
            LeaseLost: The turn has lost the lease of the session; nothing was moved.
        """
        self._check_running()
        # A second run would find an empty inbox, and the turn would miss the messages that the first one has moved.
        threshold = self._context.payload_threshold
        taken = self._context.transact_once(inbox.take, self.key, self.id, self.lease, self._ids, threshold)
        self._add(taken)
        return taken

    def write(self, text: str) -> None:
        """Add a piece of a streamed answer to the draft.

        Pieces are collected and stored together, at most once in the time `flush` of `Conversation.turn` (250 ms by
        default). Storing them extends the lease.

        Args:
            text: The piece.

        Raises:
            LeaseLost: The turn has lost the lease of the session.
        """
        if self._collect(text):
            self.flush()

    def _collect(self, text: str) -> bool:
        """Add a piece to the draft without storing it; return True if it is time for `flush`."""
        self._check_running()
        if not isinstance(text, str):
            raise TypeError(f"text is {type(text).__name__}, not str")
        self._draft.texts.append(text)
        return monotonic() - self._draft.flushed_at >= self._flush_every

    def flush(self) -> None:
        """Store the collected pieces of the draft now.

        Raises:
            LeaseLost: The turn has lost the lease of the session.
        """
        self._check_running()
        piece = self._piece()
        if not piece[0]:
            return

        def store() -> None:
            with self._context.transaction(self.key, synced=False) as connection:
                now = self._context.now(connection)
                self.lease.renew(connection, now, self.key)
                drafts.write(connection, now, self.key, self.id, self.lease.token, *piece)

        self._has_drafts = True
        self._draft.flushed = 0  # if the outcome is unknown, the next piece is the whole draft
        self._context.trying(store, if_lost=False)
        self._draft.flushed, self._draft.flushed_at = len(self._draft.texts), monotonic()

    def interrupt(self) -> Message | None:
        """Append the draft as an interrupted answer, for example because the user pressed stop.

        Then leave the block to save the turn. `extra` of the message has `"interrupted": true`.

        Returns:
            The stored message, or None if nothing was written since the last answer.

        Raises:
            LeaseLost: The turn has lost the lease of the session; nothing was written.
        """
        text = self.draft_text
        return self.append(Message.assistant(text, extra=dict(INTERRUPTED))) if text else None

    # End

    def save(self) -> Turn:
        """Save the turn and release the lease, as leaving the block does.

        Raises:
            LeaseLost: The turn has lost the lease of the session; the turn was not saved.
            InvalidValue: `usage` or `metadata` cannot be stored losslessly; the turn was not saved.
        """
        self._check_running()
        if self._model is not None:
            self.metadata = {"model": self._model} | (self.metadata or {})
        usage = None if self.usage is None else encode_object(self.usage, "usage")
        metadata = None if self.metadata is None else encode_object(self.metadata, "metadata")
        for is_retry in (False, True):
            try:
                saved = self.id, (usage, metadata), self._appended.keys(), self.lease
                keeps = self._context.recorder is not None
                if self._limit is None:
                    self.stored = self._context.write(
                        running.finish, self.key, *saved, has_drafts=self._has_drafts, keeps_removed=keeps
                    )
                else:
                    arguments = self.key, self._limit, saved
                    self.stored = self._context.transact(
                        running.finish_limited, *arguments, has_drafts=self._has_drafts, keeps_removed=keeps
                    )
                break
            except UniqueViolation:  # `save_turn` has stored the id since, so the retry finds the stored turn
                if is_retry:
                    raise
        self._is_running = False
        assert self.stored is not None
        return self.stored

    def abandon(self) -> None:
        """End the turn without saving it, as leaving the block with an exception does."""
        self._abandon(None)

    def _abandon(self, retry: Retry | None) -> bool:
        """Release the lease; return False if the turn had lost it."""
        is_open = self._is_running or (retry is not None and self.stored is None)
        if not is_open or self._process != os.getpid():  # a forked child has no part in the lease
            return True
        has_lease = True
        try:
            arguments = (self.key, self.id, self.lease.token, *self._piece(), retry)
            has_lease = self._context.transact(running.abandon, *arguments)
        except LangoStoreError as error:  # the block's exception matters more, and the lease ends on its own
            logger.warning("turn %s could not release its lease: %s", quoted(self.id), error)
        self._is_running = False
        return has_lease

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None:
            self.abandon()
        elif self._is_running:
            try:
                self.save()
            except BaseException:
                self.abandon()
                raise

    def _check_running(self) -> None:
        if not self._is_running:
            reason = "is already stored" if self.replayed else "is not running"
            raise InvalidState(f"turn {quoted(self.id)} {reason}: write only inside of its block")
        if self._process != os.getpid():  # it would give its messages the ids of the parent's
            raise InvalidState(
                f"turn {quoted(self.id)} belongs to the process that this one was forked from: write there, or fork "
                "before the turn begins"
            )

    def _add(self, stored: Sequence[Message]) -> None:
        for message in stored:
            if message.turn_no is None:  # a known id may name a message of another turn
                self._appended.setdefault(message.seq, message)

    def _piece(self) -> tuple[str, bool]:
        """Return the text to store next, and whether it is the whole draft."""
        return drafts.joined(self._draft.texts[self._draft.flushed :]), not self._draft.flushed
