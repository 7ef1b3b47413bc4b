"""Fitting a conversation into a model's context: pure functions over lists of messages.

Records among the messages are ignored: no function returns them, and they cost no tokens.
An assistant message that calls tools and the results of its calls form an exchange, which is kept or removed as a
whole, since providers refuse a result without its call.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from lango_store._values.content_blocks import text_of
from lango_store._values.model import Message, MessageRole, ToolCall, as_text
from lango_store._values.value import copied

Count = Callable[[Message], int]

_LARGEST: Final = 10**12
_UNFINISHED: Final = "The tool did not finish: its result is unknown."
_KEPT: Final = frozenset({MessageRole.SYSTEM, MessageRole.DEVELOPER})


def answers(message: Message) -> list[str]:
    """Return which calls a message answers, by their ids; a record answers none.

    A tool answers with `content` and `tool_call_id`, or with `tool_calls` that carry an `output`. An assistant message
    whose calls carry their outputs answers them itself.
    """
    if message.role is MessageRole.RECORD:
        return []
    ids = [call.id for call in message.tool_calls if call.answered]
    if _is_result(message) and message.tool_call_id:
        ids.insert(0, message.tool_call_id)
    return [call_id for call_id in dict.fromkeys(ids) if call_id]


def tokens_of(message: Message, count: Count | None = None) -> int:
    """Return the tokens a message carries, else what `count` says of it; ValueError where there is neither."""
    if message.tokens is not None:
        return message.tokens
    if count is None:
        name = f"message {message.seq}" if message.seq else f"a message of role {message.role.value}"
        raise ValueError(
            f"{name} has no token count: give the message `tokens`, or give a counter, here with count=… "
            "or with Store(token_counter=…), which counts what is appended"
        )
    return count(message)


def legal_suffix(messages: Sequence[Message], max_messages: int | None = None) -> list[Message]:
    """Return the most recent messages, at most `max_messages`, that a provider accepts as a conversation.

    The longest suffix that parts no call from its results, has no tool result before its first assistant message, and
    begins with a user's message if one is in it. A system message in front of that is not in it. ValueError for a
    negative number.
    """
    if max_messages is not None:
        _reject_negative("max_messages", max_messages)
    messages = _said(messages)
    end = start = needed = len(messages)
    earliest = 0 if max_messages is None else max(0, end - max_messages)
    heads = {position: members[0] for members in _exchanges(messages, _is_result) for position in members}
    has_user = has_bare_result = False
    for position in reversed(range(earliest, end)):
        message = messages[position]
        is_user = message.role is MessageRole.USER
        has_user = has_user or is_user
        has_bare_result = _is_result(message) or (has_bare_result and not _is_assistant(message))
        needed = min(needed, heads.get(position, position))
        if needed == position and not has_bare_result and is_user == has_user:
            start = position
    return list(messages[start:])


def without_orphans(messages: Sequence[Message], called: Collection[str] = ()) -> list[Message]:
    """Leave out tool results whose calls are neither among the messages nor, by their ids, among those `called`."""
    messages = _said(messages)
    answering = {position for members in _exchanges(messages, _is_result) for position in members}
    return [
        message
        for position, message in enumerate(messages)
        if not _is_result(message) or position in answering or _answers_only(message, called)
    ]


def tail_within(messages: Sequence[Message], max_tokens: int, *, count: Count | None = None) -> list[Message]:
    """Return the longest suffix of at most `max_tokens`, wherever that cuts; `legal_suffix` makes it fit for a model.

    ValueError for a negative number, and for a message without tokens where there is no `count`.
    """
    _reject_negative("max_tokens", max_tokens)
    messages = _said(messages)
    left = max_tokens
    for position in reversed(range(len(messages))):
        left -= tokens_of(messages[position], count)
        if left < 0:
            return list(messages[position + 1 :])
    return list(messages)


def plan_eviction(messages: Sequence[Message], need: int, *, count: Count | None = None) -> list[tuple[int, int]]:
    """Choose what to evict to free `need` tokens: ranges of positions, both ends included, in the list's order.

    First whole turns before the last user message, oldest first: from a user's message to the last answer to it. Then,
    after the last user message, assistant messages with the results of their calls, except the last of them. System and
    developer messages stay, and so do results that had no call in the first place; ranges are split around them, and
    around records. The plan may free less than needed, and is empty where nothing can go. ValueError for a negative
    need, and for a message without tokens where there is no `count`.
    """
    _reject_negative("need", need)
    return _plan(messages, need, _sizes(messages, count)) if need else []


def evict(messages: Sequence[Message], plan: Sequence[tuple[int, int]]) -> list[Message]:
    """Return the messages without those of a plan; all if a range is reversed, out of bounds or overlaps another."""
    ranges = sorted(plan)
    ends = [-1, *(last for _, last in ranges)]
    if any(not end < first <= last < len(messages) for end, (first, last) in zip(ends, ranges, strict=False)):
        return _said(messages)
    gone = {position for first, last in ranges for position in range(first, last + 1)}
    return _said([message for position, message in enumerate(messages) if position not in gone])


def fit(messages: Sequence[Message], budget: int, *, count: Count | None = None) -> list[Message]:
    """Evict as much as `plan_eviction` has to for the rest to be at most `budget` tokens.

    What is never evicted stays, even above the budget: system messages, the last user message and the last exchange,
    questions without an answer. ValueError for a negative budget, and for a message without tokens where there is no
    `count`.
    """
    _reject_negative("budget", budget)
    sizes = _sizes(messages, count)
    return evict(messages, _plan(messages, sum(sizes) - budget, sizes))


def close_calls(messages: Sequence[Message]) -> list[Message]:
    """Add a result to each tool call that has none, which says that the tool did not finish.

    A program that ended between a call and its result leaves such calls, and chat APIs refuse them. The added messages
    follow the other results of the message that called, and are the same at every call.
    """
    messages = _said(messages)
    open_calls: list[tuple[int, ToolCall]] = []
    ends: dict[int, int] = {}
    asker: int | None = None
    for position, message in enumerate(messages):
        if _is_result(message):
            if asker is not None:
                ends[asker] = position
            for call_id in _result_ids(message):
                same = [each for each in open_calls if call_id and each[1].id == call_id]
                same = same or [each for each in open_calls if each[0] == asker and not (call_id and each[1].id)]
                if same:
                    open_calls.remove(next(each for each in same if each[0] == same[-1][0]))
        else:
            asker = position if _is_assistant(message) else None
            if asker is not None:
                ends[position] = position
                open_calls += [(position, call) for call in message.tool_calls if not call.answered]
    added: defaultdict[int, list[Message]] = defaultdict(list)
    for position, call in open_calls:
        added[ends[position]].append(Message.tool(_UNFINISHED, tool_call_id=call.id or None, name=call.name or None))
    return [each for position, message in enumerate(messages) for each in (message, *added.get(position, ()))]


def completion_budget(context: int, max_output: int | None = None) -> int:
    """Return how many tokens of a context to reserve for the answer: a sixth of a small one, up to three tenths.

    `max_output` is the most that the provider generates; None or 0 if that is unknown. The formula is Shepherd's.
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


def as_prompt(messages: Sequence[Message], *, nested: bool = True) -> list[dict[str, Any]]:
    """Write messages as a model is sent them: role, content, tool_calls, tool_call_id and name, and nothing else.

    Role and content are always there, the others where they say something. Each output of a tool becomes a message of
    its own. In OpenAI's nested form contents stay unchanged, outputs are text, and calls keep the
    fields that their provider added. In the flat form contents and outputs that are blocks of text only are that text,
    and calls have id, name and arguments as stored. The dicts share nothing with the messages.

    Messages that a chat API refuses are not repaired: a content that is None, empty or neither text nor blocks, another
    provider's blocks, a call without a result (see `close_calls`) or a result without a call (see `legal_suffix`), a
    role it does not know (`developer`, a second `system`), a name with a space, half a surrogate pair.
    """
    return [copied(entry) for message in _said(messages) for entry in _entries(message, nested)]


def _entries(message: Message, nested: bool) -> Iterator[dict[str, Any]]:
    outputs = [call for call in message.tool_calls if call.answered]
    covered = {call.id for call in outputs}
    if not _is_result(message) or not outputs or (message.tool_call_id and message.tool_call_id not in covered):
        calls = [call for call in message.tool_calls if not (_is_result(message) and call.answered)]
        yield _entry(
            message.role.canonical,
            message.content if nested else _flat_content(message.content),
            tool_calls=[call.to_openai() if nested else _flat(call) for call in calls],
            tool_call_id=message.tool_call_id,
            name=message.name,
        )
    for call in outputs:
        output = as_text(call.output) if nested else _flat_content(call.output)
        yield _entry(MessageRole.TOOL, output, tool_call_id=call.id, name=call.name)


def _entry(role: MessageRole, content: Any, **others: Any) -> dict[str, Any]:
    return {"role": role.value, "content": content} | {name: value for name, value in others.items() if value}


def _flat_content(content: Any) -> Any:
    text = text_of(content)
    return content if text is None else text


def _flat(call: ToolCall) -> dict[str, Any]:
    flat = {"id": call.id, "name": call.name}
    return flat | {"arguments": call.arguments} if "arguments" in call.model_fields_set else flat


def _said(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.role is not MessageRole.RECORD]


def _sizes(messages: Sequence[Message], count: Count | None) -> list[int]:
    return [0 if message.role is MessageRole.RECORD else tokens_of(message, count) for message in messages]


def _plan(messages: Sequence[Message], need: int, sizes: list[int]) -> list[tuple[int, int]]:
    plan: list[tuple[int, int]] = []
    places = [place for place, message in enumerate(messages) if message.role is not MessageRole.RECORD]
    for positions in _evictable([messages[place] for place in places]):
        if need <= 0:
            break
        chosen = [places[position] for position in positions]
        need -= sum(sizes[place] for place in chosen)
        plan += _ranges(chosen)
    return sorted(plan)


def _evictable(messages: Sequence[Message]) -> Iterator[list[int]]:
    users = [position for position, message in enumerate(messages) if message.role is MessageRole.USER]
    if users:
        # A row of role `function` is not a result here: Shepherd's eviction treats it like other messages.
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
                if messages[position].role not in _KEPT and messages[position].role is not MessageRole.TOOL
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

    A result belongs to the assistant message that it follows (other results may be in between), unless both sides have
    ids; by its ids it belongs to whoever asked for them last. A result of several messages' calls joins them.
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


def _answers_only(message: Message, called: Collection[str]) -> bool:
    ids = answers(message)
    return bool(ids) and all(call_id in called for call_id in ids)


def _result_ids(message: Message) -> list[str]:
    """Return the id of each result that `as_prompt` writes for a tool's message, "" for one without."""
    ids = [call.id for call in message.tool_calls if call.answered]
    return ids if ids and (message.tool_call_id or ids[0]) in ids else [message.tool_call_id or "", *ids]


def _asks_by_id(message: Message) -> bool:
    return any(call.id for call in message.tool_calls)


def _reject_negative(name: str, value: int) -> None:
    if value < 0:
        raise ValueError(f"{name} is {value}: give 0 or more")
