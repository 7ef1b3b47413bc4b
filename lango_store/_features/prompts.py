"""A prompt is the end of a window that fits a budget and starts at a message that a provider accepts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from lango_store import window
from lango_store._dialect import AnyConnection, Moment
from lango_store._features.tool_calls import calls
from lango_store._operations.log.messages import ALL, check_count, tail
from lango_store._operations.session import sessions
from lango_store._values.model import Message, MessageRole
from lango_store.errors import quoted

_FIRST_PAGE: Final = 64
_INSTRUCTIONS: Final = (MessageRole.SYSTEM, MessageRole.DEVELOPER)


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


def history(
    connection: AnyConnection,
    now: Moment,
    key: str,
    budget: Budget,
    *,
    from_consolidated: bool,
    count: window.Count | None,
) -> tuple[list[Message], window.Recorded]:
    """Read the prompt of a live session, the end of its window that fits the budget, and the calls of its results.

    One statement if the prompt has no results; with `max_tokens`, `step_tokens` or `from_consolidated`, several.
    """
    newest, stored_tokens = None, 0
    if from_consolidated or budget.step_tokens is not None:
        info = sessions.info(connection, now, key)
        stored_tokens = info.token_count
        newest = info.message_count - info.last_consolidated if from_consolidated else None
    max_tokens = budget.max_tokens
    size = budget.most if max_tokens is None else min(_FIRST_PAGE, budget.most)
    while True:
        messages, summary_turn = tail(connection, now, key, size, newest=newest)
        fitting = messages if max_tokens is None else window.tail_within(messages, max_tokens, count=count)
        if len(fitting) < len(messages) or len(messages) < size or size == budget.most:
            break
        size = min(4 * size, budget.most)
    results = [message.seq for message in messages if message.role.canonical is MessageRole.TOOL]
    recorded = calls.read_of_results(connection, key, results)
    return _legal(_chosen(messages, fitting, summary_turn, budget, stored_tokens), summary_turn, recorded), recorded


def simulated(
    messages: Sequence[Message], summary_turn: int | None, budget: Budget, recorded: window.Recorded
) -> Iterator[list[Message]]:
    """Yield the prompts that a model would have got for a window: before each assistant message, and at its end.

    Token budgets are not supported.
    """
    for position, message in enumerate([*messages, None]):
        if message is None or message.role.canonical is MessageRole.ASSISTANT:
            read = messages[max(position - budget.most, 0) : position]
            yield _legal(_last_messages(read, summary_turn, budget), summary_turn, recorded)


def _chosen(
    messages: Sequence[Message],
    fitting: Sequence[Message],
    summary_turn: int | None,
    budget: Budget,
    stored_tokens: int,
) -> Sequence[Message]:
    """Return the last messages that fit the budget; `fitting` are the last ones that fit `max_tokens`."""
    limited = _last_messages(messages, summary_turn, budget)
    if len(fitting) >= len(limited):
        return limited
    if budget.step_tokens is not None:
        fitting = _from_token_step(_without_summary(fitting, summary_turn), stored_tokens, budget.step_tokens)
    return fitting


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


def _legal(messages: Sequence[Message], summary_turn: int | None, recorded: window.Recorded) -> list[Message]:
    """Remove messages that a model would refuse or misunderstand, such as results without their tool calls."""
    messages = window.without_orphans(messages, recorded=recorded)
    if messages and summary_turn is not None and messages[0].turn_no == summary_turn:
        return messages  # the summary covers all messages before the others
    system = list(takewhile(lambda message: message.role in _INSTRUCTIONS, messages))
    suffix = window.legal_suffix(messages[len(system) :])
    if len(system) + len(suffix) < len(messages):  # a call was cut, and another one may have its id
        suffix = window.without_orphans(suffix, recorded=recorded)
    return [*system, *suffix]
