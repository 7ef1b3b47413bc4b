"""Choose the messages of a conversation that fit into the context of a model."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from lango_store._values.model import Message, MessageRole
from lango_store.window.repair import INSTRUCTIONS

Count = Callable[[Message], int]
"""A function that returns the number of tokens of a message."""

_LARGEST: Final = 10**12


def answers(message: Message) -> list[str]:
    """Return the ids of the tool calls whose results are in a message.

    The result of a call is a tool message with the call's id as its `tool_call_id`, or an item of `tool_calls` that has
    an `output`, even if the message is an assistant message.

    Args:
        message: Any message.

    Returns:
        The ids, each one once. Empty for a record, and for a message without results.
    """
    if message.role is MessageRole.RECORD:
        return []
    ids = [call.id for call in message.tool_calls if call.answered]
    if _is_result(message) and message.tool_call_id:
        ids.insert(0, message.tool_call_id)
    return [call_id for call_id in dict.fromkeys(ids) if call_id]


def tokens_of(message: Message, count: Count | None = None) -> int:
    """Return the number of tokens of a message: its `tokens`, or the result of `count`.

    Args:
        message: Any message.
        count: A function that counts the tokens of a message without `tokens`. Default: None.

    Raises:
        ValueError: The message has no `tokens`, and `count` is None.
    """
    if message.tokens is not None:
        return message.tokens
    if count is None:
        name = f"message {message.seq}" if message.seq else f"a message of role {message.role.value}"
        raise ValueError(
            f"{name} has no token count: give the message `tokens`, pass count=…, "
            "or open the store with Store(token_counter=…), which counts each appended message"
        )
    return count(message)


def legal_suffix(messages: Sequence[Message], max_messages: int | None = None) -> list[Message]:
    """Return the most recent messages that a provider accepts as a conversation.

    The result is the longest end of `messages`, without records, that does not separate a call from its results, has no
    tool result before its first assistant message, and starts with a user message if it contains one. A system message
    before this part is not included: add it yourself.

    Args:
        messages: The messages in their order.
        max_messages: The maximum number of messages in the result. Default: None, no limit.

    Raises:
        ValueError: `max_messages` is negative.
    """
    if max_messages is not None:
        _reject_negative("max_messages", max_messages)
    messages = _without_records(messages)
    end = start = needed = len(messages)
    earliest = 0 if max_messages is None else max(0, end - max_messages)
    heads: dict[int, int] = {}
    if _have_results(messages):
        heads = {position: members[0] for members in _exchanges(messages, _is_result) for position in members}
    has_user = has_bare_result = False
    for position in reversed(range(earliest, end)):
        role = messages[position].role.canonical
        is_user = role is MessageRole.USER
        has_user = has_user or is_user
        has_bare_result = role is MessageRole.TOOL or (has_bare_result and role is not MessageRole.ASSISTANT)
        needed = min(needed, heads.get(position, position))
        if needed == position and not has_bare_result and is_user == has_user:
            start = position
    return list(messages[start:])


def last_within(messages: Sequence[Message], max_tokens: int, *, count: Count | None = None) -> list[Message]:
    """Return the last messages that together have at most `max_tokens` tokens.

    The result may start anywhere, also between a call and its result. Pass it to `legal_suffix` before you send it to a
    model.

    Args:
        messages: The messages in their order.
        max_tokens: The maximum number of tokens of the result, 0 or more.
        count: A function that counts the tokens of a message without `tokens`. Default: None.

    Raises:
        ValueError: `max_tokens` is negative, or a message has no `tokens` and `count` is None.
    """
    _reject_negative("max_tokens", max_tokens)
    messages = _without_records(messages)
    remaining = max_tokens
    for position in reversed(range(len(messages))):
        remaining -= tokens_of(messages[position], count)
        if remaining < 0:
            return list(messages[position + 1 :])
    return list(messages)


def plan_eviction(messages: Sequence[Message], need: int, *, count: Count | None = None) -> list[tuple[int, int]]:
    """Choose messages whose removal frees `need` tokens.

    The plan removes the oldest messages first, in two steps:

    1. before the last user message: whole turns, each a user message and everything up to its last answer;
    2. after the last user message: exchanges, except the last one.

    System and developer messages, and results whose call is missing, are never removed.

    Args:
        messages: The messages in their order.
        need: The number of tokens to free, 0 or more.
        count: A function that counts the tokens of a message without `tokens`. Default: None.

    Returns:
        Ranges of positions in `messages`, in order, each as its first and last position. Pass them to `evict`. The
        ranges may free fewer than `need` tokens, if not enough messages can be removed.

    Raises:
        ValueError: `need` is negative, or a message has no `tokens` and `count` is None.
    """
    _reject_negative("need", need)
    return _plan(messages, need, _sizes(messages, count)) if need else []


def evict(messages: Sequence[Message], plan: Sequence[tuple[int, int]]) -> list[Message]:
    """Return the messages without those that a plan removes.

    Args:
        messages: The same messages that were passed to `plan_eviction`.
        plan: The result of `plan_eviction`. If a range is reversed, out of bounds or overlaps another range, no range
            is removed.
    """
    ranges = sorted(plan)
    ends = [-1, *(last for _, last in ranges)]
    if any(not end < first <= last < len(messages) for end, (first, last) in zip(ends, ranges, strict=False)):
        return _without_records(messages)
    removed = {position for first, last in ranges for position in range(first, last + 1)}
    return _without_records([message for position, message in enumerate(messages) if position not in removed])


def fit(messages: Sequence[Message], budget: int, *, count: Count | None = None) -> list[Message]:
    """Return the messages, shortened to at most `budget` tokens.

    The oldest turns are removed first, as in `plan_eviction`. System and developer messages, the last user message, the
    last exchange, and questions without an answer are not removed, so the result can exceed the budget.

    Args:
        messages: The messages in their order.
        budget: The maximum number of tokens, 0 or more.
        count: A function that counts the tokens of a message without `tokens`. Default: None.

    Raises:
        ValueError: `budget` is negative, or a message has no `tokens` and `count` is None.

    Example:
        ```python
        from lango_store import Message, window

        talk = [
            Message.user("Hello", tokens=5),
            Message.assistant("Hi!", tokens=3),
            Message.user("And now?", tokens=4),
        ]
        assert [m.content for m in window.fit(talk, 6)] == ["And now?"]
        ```
    """
    _reject_negative("budget", budget)
    sizes = _sizes(messages, count)
    return evict(messages, _plan(messages, sum(sizes) - budget, sizes))


def completion_budget(context: int, max_output: int | None = None) -> int:
    """Return the number of tokens of the model's context to reserve for the answer.

    The share grows with the context, from about one sixth of a small context to three tenths of a context of 160,000
    tokens or more.

    Args:
        context: The size of the model's context in tokens, 0 to 10**12.
        max_output: The maximum number of tokens that the provider generates, which limits the result. None (the
            default) or 0 if unknown.

    Raises:
        ValueError: `context` or `max_output` is out of range.
    """
    if not 0 <= context <= _LARGEST:
        raise ValueError(f"context={context}: give the size of the model's context in tokens, 0 to {_LARGEST:,}")
    half = context // 2
    share = min(0.33 + half / 80_000 * 0.27, 0.6)
    budget = int(half * share)
    if not max_output:
        return budget
    _reject_negative("max_output", max_output)
    return min(budget, max_output)


def _without_records(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.role is not MessageRole.RECORD]


def _sizes(messages: Sequence[Message], count: Count | None) -> list[int]:
    return [0 if message.role is MessageRole.RECORD else tokens_of(message, count) for message in messages]


def _plan(messages: Sequence[Message], need: int, sizes: list[int]) -> list[tuple[int, int]]:
    plan: list[tuple[int, int]] = []
    originals = [position for position, message in enumerate(messages) if message.role is not MessageRole.RECORD]
    for positions in _evictable([messages[position] for position in originals]):
        if need <= 0:
            break
        chosen = [originals[position] for position in positions]
        need -= sum(sizes[position] for position in chosen)
        plan += _ranges(chosen)
    return sorted(plan)


def _evictable(messages: Sequence[Message]) -> Iterator[list[int]]:
    users = [position for position, message in enumerate(messages) if message.role is MessageRole.USER]
    if users:
        # A message with the role `function` is not a result here: Shepherd's eviction treats it like other messages.
        exchanges = _exchanges(messages, lambda message: message.role is MessageRole.TOOL)
        yield from _whole_turns(messages, users, exchanges)
        yield from _answered_calls(messages, users[-1], exchanges)


def _whole_turns(messages: Sequence[Message], users: list[int], exchanges: list[list[int]]) -> Iterator[list[int]]:
    exchange = {position: members for members in exchanges for position in members}
    for first, after in pairwise(users):
        assistants = [position for position in range(first, after) if _is_assistant(messages[position])]
        whole = all(first < exchange[position][0] and exchange[position][-1] < after for position in assistants)
        if assistants and whole:
            turn = {
                position
                for position in range(first, assistants[-1])
                if messages[position].role not in INSTRUCTIONS and messages[position].role is not MessageRole.TOOL
            }
            yield sorted(turn.union(*(exchange[position] for position in assistants)))


def _answered_calls(messages: Sequence[Message], user: int, exchanges: list[list[int]]) -> Iterator[list[int]]:
    last = max((position for position, message in enumerate(messages) if _is_assistant(message)), default=user)
    for members in exchanges:
        answered = len(members) > 1 or answers(messages[members[0]])
        if answered and members[0] > user and last not in members:
            yield members


def _exchanges(messages: Sequence[Message], is_result: Callable[[Message], bool]) -> list[list[int]]:
    """Group the positions of each assistant message and the results of its calls.

    A result with ids belongs to the last assistant messages that made calls with these ids, so that one result can join
    the exchanges of several assistant messages. If the result has no ids, or the assistant message before it made calls
    without ids, the result also belongs to that assistant message, even if other results are in between.
    """
    heads: dict[int, int] = {}
    asked: dict[str, int] = {}
    asker: int | None = None
    for position, message in enumerate(messages):
        if is_result(message):
            ids = answers(message)
            calls = {asked[call_id] for call_id in ids if call_id in asked}
            if asker is not None and not (ids and _asks_by_id(messages[asker])):
                calls.add(asker)
            joined = {heads[call] for call in calls}
            if joined:
                heads[position] = min(joined)
            if len(joined) > 1:
                heads.update({other: min(joined) for other, head in heads.items() if head in joined})
        elif _is_assistant(message):
            heads[position] = asker = position
            asked |= {call.id: position for call in message.tool_calls if call.id}
        else:
            asker = None
    exchanges: defaultdict[int, list[int]] = defaultdict(list)
    for position, head in heads.items():
        exchanges[head].append(position)
    return list(exchanges.values())


def _ranges(positions: list[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for position in positions:
        if ranges and ranges[-1][1] == position - 1:
            ranges[-1] = (ranges[-1][0], position)
        else:
            ranges.append((position, position))
    return ranges


def _is_assistant(message: Message) -> bool:
    return message.role.canonical is MessageRole.ASSISTANT


def _is_result(message: Message) -> bool:
    return message.role.canonical is MessageRole.TOOL


def _have_results(messages: Sequence[Message]) -> bool:
    return MessageRole.TOOL in {message.role.canonical for message in messages}


def _asks_by_id(message: Message) -> bool:
    return any(call.id for call in message.tool_calls)


def _reject_negative(name: str, value: int) -> None:
    if value < 0:
        raise ValueError(f"{name} is {value}: give 0 or more")
