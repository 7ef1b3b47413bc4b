"""A prompt is the end of a window that fits a budget and starts at a message that a provider accepts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import sqlalchemy as sa

from lango_store import window
from lango_store._dialect import AnyConnection, Moment
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import CHANGE, KEY
from lango_store._operations.log.messages import ALL, check_count, read_by_ids, read_records
from lango_store._operations.session import sessions
from lango_store._rooms.prompts.ends import LastMessages, read_last
from lango_store._rooms.tool_calls import calls
from lango_store._values.model import Message, MessageRole
from lango_store.errors import quoted
from lango_store.window.repair import INSTRUCTIONS
from lango_store.window.thinking import instructions_of

_FIRST_PAGE: Final = 64


@dataclass(frozen=True)
class Budget:
    """The limits of a prompt, and the steps in which its start moves when a limit is reached."""

    last: int | None = None
    max_tokens: int | None = None
    step: int | None = None
    step_tokens: int | None = None

    def __post_init__(self) -> None:
        check_count("last", self.last)
        check_count("max_tokens", self.max_tokens)
        _check_step("step", self.step, "last", self.last)
        _check_step("step_tokens", self.step_tokens, "max_tokens", self.max_tokens)
        if self.step_tokens is not None and self.max_tokens is not None and self.step_tokens > self.max_tokens:
            raise ValueError(f"step_tokens={self.step_tokens} exceeds max_tokens={self.max_tokens}: give a smaller one")

    @property
    def most(self) -> int:
        """The maximum number of messages to read.

        With `step`, a prompt has up to `last + step - 1` messages. One more message shows
        that the window is longer.
        """
        return ALL if self.last is None else min(self.last + (self.step or 0), ALL)


def _check_step(name: str, step: int | None, limit_name: str, limit: int | None) -> None:
    if step is not None and (type(step) is not int or step < 1):
        raise ValueError(f"{name}={quoted(step)} is not positive: give 1 or more")
    if step is not None and limit is None:
        raise ValueError(f"{name} moves the start of a limited prompt: give {limit_name} as well")


@dataclass(frozen=True)
class Excerpt:
    """The part of a window that a prompt has.

    Attributes:
        messages: The messages.
        recorded: The calls of their results.
        is_whole: If the window has no other messages.
        changes: The changes of the log, each as its `seq` and the `seq` after which messages can have changed.
        instructions: The record with the instructions and tools of the last request; None if it is not known.
    """

    messages: list[Message]
    recorded: window.Recorded
    is_whole: bool = True
    changes: Sequence[tuple[int, int]] = ()
    instructions: Message | None = None

    def is_intact(self, message: Message) -> bool:
        """Return True if nothing before a message has changed or is missing since it was stored."""
        return self.is_whole and not any(after < message.seq < seq for seq, after in self.changes)


def history(
    connection: AnyConnection,
    now: Moment,
    key: str,
    budget: Budget,
    *,
    from_consolidated: bool,
    count: window.Count | None,
    binds: bool,
    records: str = "",
) -> Excerpt:
    """Read the prompt of a live session, the end of its window that fits the budget, and the calls of its results.

    One statement if the prompt has no results and is not cut; with `max_tokens`, `step_tokens` or `from_consolidated`,
    several. Instructions at the start of the window are read if the budget would cut them. If answers have
    fingerprints, the instructions of the last request take one more; with `binds`, so do answers without.

    `records` is the author of records that are parts of the prompt. They are read from the first message of the prompt
    on, and do not count in the budget.
    """
    newest, stored_tokens = None, 0
    if from_consolidated or budget.step_tokens is not None:
        info = sessions.info(connection, now, key)
        stored_tokens = info.token_count
        newest = info.message_count - info.last_consolidated if from_consolidated else None
    size = budget.most if budget.max_tokens is None else min(_FIRST_PAGE, budget.most)
    while True:
        read = read_last(connection, now, key, size, newest=newest)
        if read.is_whole or size == ALL or len(_fitting(read.messages, budget, count)) < len(read.messages):
            break
        if size >= budget.most and (not budget.last or _last_to_send(read.messages) is not None):
            break
        size = min(4 * size, budget.most if size < budget.most else ALL)
    chosen = _chosen(read, budget, stored_tokens, count)
    results = [message.seq for message in chosen if message.role.canonical is MessageRole.TOOL]
    recorded = calls.read_of_results(connection, key, results) if results else {}
    is_whole = read.is_whole and not from_consolidated and len(chosen) >= len(read.messages)
    if records and chosen:
        chosen = _with_records(chosen, read_records(connection, now, key, records), read, is_cut=not is_whole)
    answer = None
    for message in read.messages:  # a loop without calls, since most sessions have no fingerprints
        if message.request is not None:
            answer = message
    id = instructions_of(answer) if answer is not None else None
    record = read_by_ids(connection, key, frozenset({id})).get(id) if id else None
    if not binds:
        return Excerpt(chosen, recorded, instructions=record)
    rows = _changes.run(connection, {"key": key}) if any(map(_may_think, chosen)) else ()
    changes = [(seq, 0 if kind in _ANYWHERE else after) for seq, kind, after in rows]
    return Excerpt(chosen, recorded, is_whole, changes, record)


def _with_records(
    chosen: list[Message], records: Sequence[Message], read: LastMessages, *, is_cut: bool
) -> list[Message]:
    """Put records in their places among the chosen messages; if the window is cut, only those after the cut."""

    def place(message: Message) -> tuple[bool, int]:
        return message.turn_no is None or message.turn_no != read.summary_turn, message.seq

    first = next((message for message in chosen if message not in read.leading), chosen[-1])
    own = [record for record in records if not is_cut or place(record) > place(first)]
    return sorted([*chosen, *own], key=place)


_ANYWHERE: Final = ("drop_sent", "undo", "redo", "fork")
"""The changes after which any earlier message can differ."""

_changes: Final = Statement(
    sa.select(CHANGE.c.seq, CHANGE.c.kind, CHANGE.c.after_seq).where(CHANGE.c.session_key == KEY)
)


def _may_think(message: Message) -> bool:
    is_answer = message.role.canonical is MessageRole.ASSISTANT and message.request is None
    return is_answer and bool(message.extra or isinstance(message.content, list))


def simulated(messages: Sequence[Message], summary_turn: int | None, budget: Budget) -> Iterator[list[Message]]:
    """Yield the prompts that a model would have got for a window: before each assistant message, and at its end.

    Token budgets are not supported.
    """
    leading = [] if summary_turn is not None else list(takewhile(_instructs, messages))
    to_send = 0
    for position, message in enumerate([*messages, None]):
        if message is None or message.role.canonical is MessageRole.ASSISTANT:
            start = min(max(position - budget.most, 0), to_send)
            read = LastMessages(messages[start:position], summary_turn, is_whole=start == 0, leading=leading[:position])
            yield _chosen(read, budget, 0, None)
        if message is not None and _can_be_sent(message):
            to_send = position


def _chosen(read: LastMessages, budget: Budget, stored_tokens: int, count: window.Count | None) -> list[Message]:
    """Return the last messages that fit the budget, after the instructions at the start of the window.

    If the budget leaves out other messages, the rest begins with a user message if it has one, or with a summary. A
    prompt of instructions and results alone would be refused, so `last` reaches back to a message that can be sent.
    """
    leading = {message.seq for message in read.leading}
    rest = [message for message in read.messages if message.seq not in leading]
    limited = _last_messages(rest, read.summary_turn, budget)
    if budget.last and _last_to_send(limited) is None:
        limited = rest[_last_to_send(rest) or 0 :]
    if budget.max_tokens is not None:
        tokens = sum(window.tokens_of(message, count) for message in read.leading)
        fitting = _fitting(rest, budget, count, leading=tokens)
        if len(fitting) < len(limited) and budget.step_tokens is not None:
            fitting = _from_token_step(_without_summary(fitting, read.summary_turn), stored_tokens, budget.step_tokens)
        limited = min(limited, fitting, key=len)
    has_summary = read.summary_turn is not None and limited[:1] and limited[0].turn_no == read.summary_turn
    if not has_summary and (len(limited) < len(rest) or not read.is_whole):
        users = (position for position, message in enumerate(limited) if message.role is MessageRole.USER)
        limited = limited[next(users, 0) :]
    return [*read.leading, *limited]


def _fitting(
    messages: Sequence[Message], budget: Budget, count: window.Count | None, *, leading: int = 0
) -> Sequence[Message]:
    """Return the last messages that have at most `max_tokens` tokens together with the `leading` tokens."""
    if budget.max_tokens is None:
        return messages
    return window.last_within(messages, max(budget.max_tokens - leading, 0), count=count)


def _can_be_sent(message: Message) -> bool:
    is_said = message.role.canonical in (MessageRole.USER, MessageRole.ASSISTANT)
    return is_said and bool(message.content or message.sent or message.tool_calls)


def _last_to_send(messages: Sequence[Message]) -> int | None:
    """Return the position of the last message that a provider accepts without the messages before it."""
    return next((n for n in reversed(range(len(messages))) if _can_be_sent(messages[n])), None)


def _instructs(message: Message) -> bool:
    return message.role in INSTRUCTIONS


def _last_messages(messages: Sequence[Message], summary_turn: int | None, budget: Budget) -> Sequence[Message]:
    """Return the last `budget.last` messages; with a step, also those before them, back to a multiple of `step`.

    The multiple is a seq, so most appends do not move the start. With a step, a summary does not count towards the
    limit; if the window exceeds the limit, the whole summary is left out.
    """
    last = budget.last
    if last is None or len(messages) <= last:
        return messages
    later = _without_summary(messages, summary_turn)
    if budget.step is None or not last or not later:
        return messages[len(messages) - last :]
    start = (later[-last:][0].seq - 1) // budget.step * budget.step
    return [message for message in later if message.seq > start]


def _from_token_step(messages: Sequence[Message], stored_tokens: int, step: int) -> Sequence[Message]:
    """Drop messages up to the next multiple of `step` tokens, counted from the session's start.

    This way, most appends do not move the start of the prompt.
    """
    end = stored_tokens - sum(_stored_count(message) for message in messages)
    start = -(-end // step) * step
    for position, message in enumerate(messages):
        end += _stored_count(message)
        if end > start:
            return messages[position:]
    return messages


def _without_summary(messages: Sequence[Message], summary_turn: int | None) -> Sequence[Message]:
    return [message for message in messages if summary_turn is None or message.turn_no != summary_turn]


def _stored_count(message: Message) -> int:
    if message.tokens is None:
        raise ValueError(
            f"message {message.seq} has no token count, which step_tokens needs for each message: "
            "append with Store(token_counter=…), or use step instead"
        )
    return message.tokens
