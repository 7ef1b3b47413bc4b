"""Usage of model responses, and the totals that the CLI reports.

The CLI may write an entry before it knows the usage of the response: the entry then has a preliminary usage. At the end
of a query, it writes an entry `cost-state` with the tokens of the session and its subagents so far. Tokens that are
missing in the usage of the responses become the usage of another turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from lango_store import SessionNotFound, Store
from lango_store.integrations.claude_agent_sdk.entries import NAME
from lango_store.integrations.counts import Counts, as_usage, counts_of
from lango_store.integrations.fields import turn_metadata
from lango_store.rows import mapping, storable_text

_TOTALS: Final = f"{NAME}.usage"
"""The name of the session value that holds the last totals, and the usage of all turns at that time.

The value has these members:

- `key`: the key of the session, because forks have a copy of the value;
- `start`: the start of the CLI's count;
- `totals`: the tokens that the CLI reported, by model;
- `counted`: the tokens of the turns of the session and its subagents, by model;
- `added`: the tokens that were missing, by model. Those of a subagent whose entries arrive later are subtracted again.
"""

_NAMES: Final = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "thinkingTokens": "output_tokens_details.thinking_tokens",
    "cacheReadInputTokens": "cache_read_input_tokens",
    "cacheCreationInputTokens": "cache_creation_input_tokens",
    "cacheCreationEphemeral5mInputTokens": "cache_creation.ephemeral_5m_input_tokens",
    "cacheCreationEphemeral1hInputTokens": "cache_creation.ephemeral_1h_input_tokens",
    "webSearchRequests": "server_tool_use.web_search_requests",
}
"""For each number of a model in `cost-state`, its name in the usage of a response."""

ByModel = dict[str, Counts]
"""Counts by the name of the model; the name is empty if the model is unknown."""


# Responses


class Response(NamedTuple):
    """A model response, or the part of it that is within a batch of entries.

    Attributes:
        position: The index of the response's first entry in the batch.
        id: The id of the first entry.
        usage: The usage in the last entry.
        model: The name of the model; any JSON if another program wrote the entry.
        before: The counts that were stored with an earlier batch.
        is_copy: True if `fork_session_via_store` copied the entry.
    """

    position: int
    id: Any
    usage: dict[str, Any]
    model: Any
    before: Counts
    is_copy: bool

    @property
    def added(self) -> dict[str, Any]:
        """The usage without the counts that were stored before."""
        return as_usage(counts_of(self.usage) - self.before) if self.before else self.usage

    @property
    def tokens(self) -> int | None:
        """The number of output tokens, without those that were stored before."""
        count = self.added.get("output_tokens")
        return count if type(count) is int and 0 <= count < 2**53 else None


class Last(NamedTuple):
    """The last response of a session: its id, and the counts that are stored for it."""

    id: str | None
    counts: Counts


NO_RESPONSE: Final = Last(None, Counter())
"""The last response of a session without responses."""


def responses_of(entries: Sequence[Any], last: Last) -> tuple[list[Response], Last]:
    """Return the responses in a batch, and the last of them. `last` is the last response of the earlier batches."""
    responses: dict[str | int, Response] = {}
    for position, entry in enumerate(entries):
        message = entry.get("message") if isinstance(entry, dict) and entry.get("type") == "assistant" else None
        if not isinstance(message, dict) or not isinstance(usage := message.get("usage"), dict):
            continue
        id = message.get("id") if isinstance(message.get("id"), str) else None
        name = position if id is None else id
        block = entry.get("apiBlockIndex")  # only some versions of the SDK write this field
        is_same = id is not None and id == last.id
        continues = block != 0 if type(block) is int else is_same
        if name in responses:
            responses[name] = responses[name]._replace(usage=usage)
        elif is_same or not continues:
            before = last.counts if continues else Counter()
            is_copy = isinstance(entry.get("forkedFrom"), dict)
            responses[name] = Response(position, entry.get("uuid"), usage, message.get("model"), before, is_copy)
        last = Last(id, counts_of(usage) | (last.counts if is_same else Counter()))
    return list(responses.values()), last


def by_model(usages: Iterable[tuple[Any, Mapping[str, Any]]]) -> ByModel:
    """Add up pairs of a model and a usage."""
    sums: ByModel = {}
    for model, usage in usages:
        sums.setdefault(storable_text(model) or "", Counter()).update(counts_of(usage))
    return sums


# Totals


def add_missing(tx: Store, key: str, entry: Mapping[str, Any]) -> None:
    """Save the tokens that an entry `cost-state` has, and that no turn since the last such entry has."""
    stored = _stored(tx, key)
    start = entry.get("startTime")
    totals, counted = _totals(entry), _counted(tx, key)
    before = _parsed(stored, "totals") if stored.get("start") in (None, start) else {}
    spent = _differences(totals, before)
    seen = _differences(counted, _parsed(stored, "counted") if stored.get("key") == key else {})
    if seen.keys() - spent.keys():  # the names of the models are spelled differently
        spent, seen = ({"": sum(each.values(), Counter())} for each in (spent, seen))
    missing = _differences(spent, seen)
    for model, counts in missing.items():
        tx.conversation(key).save_turn([], as_usage(counts), metadata=turn_metadata([model]))
        counted.setdefault(model, Counter()).update(counts)
    _store(tx, key, {"key": key, "start": start, "totals": totals, "counted": counted, "added": missing})


def subtract(tx: Store, key: str, usage: ByModel) -> None:
    """Subtract tokens of a subagent from those that were missing when its session was last checked."""
    with suppress(SessionNotFound):
        if not _stored(tx, key).get("added"):
            return
        tx.conversation(key).update()  # locks the session, so that no other subagent subtracts the same tokens
        stored = _stored(tx, key)
        added = _parsed(stored, "added")
        for model, counts in usage.items():
            for name in {model, ""} & added.keys():
                common = added[name] & counts
                if common:
                    negative = {each: -count for each, count in common.items()}
                    tx.conversation(key).save_turn([], as_usage(negative), metadata=turn_metadata([name]))
                added[name], counts = added[name] - common, counts - common
        _store(tx, key, stored | {"added": added})


def start_fork(tx: Store, key: str, source: str, copied: ByModel) -> None:
    """Store the totals with which the CLI begins to count in a fork: those of the forked session."""
    stored: dict[str, Any] = {}
    with suppress(SessionNotFound):
        stored = _stored(tx, source)
    _store(tx, key, stored or {"totals": copied})


def _totals(entry: Mapping[str, Any]) -> ByModel:
    usage = mapping(entry.get("modelUsage"))
    return {
        model: Counter({name: counts[each] for each, name in _NAMES.items() if type(counts.get(each)) is int})
        for model, counts in usage.items()
        if isinstance(counts, dict)
    }


def _counted(tx: Store, key: str) -> ByModel:
    """Return the tokens of the turns of a session and its subagents, without those that a fork copied."""
    rows = tx.usage(["key", "model"], key_prefix=key)
    return by_model((row.model, row.usage) for row in rows if row.key == key or str(row.key).startswith(f"{key}/"))


def _differences(sums: ByModel, others: ByModel) -> ByModel:
    """Return for each model by how much counts are greater than others, without models that have no more."""
    differences = {model: counts - others.get(model, Counter()) for model, counts in sums.items()}
    return {model: counts for model, counts in differences.items() if counts}


def _stored(tx: Store, key: str) -> dict[str, Any]:
    return mapping(tx.conversation(key).values.get(prefix=_TOTALS).get(_TOTALS))


def _parsed(stored: Mapping[str, Any], name: str) -> ByModel:
    return {model: Counter(counts) for model, counts in mapping(stored.get(name)).items()}


def _store(tx: Store, key: str, value: dict[str, Any]) -> None:
    tx.conversation(key).values.set({_TOTALS: value})
