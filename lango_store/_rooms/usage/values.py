"""The values of the room."""

from typing import Any

from pydantic import Field

from lango_store._values.value import Value, absent


class UsageRow(Value):
    """The usage of one group of turns.

    Attributes:
        key: The key of the session. Each field from `key` to `month` is None unless the report is grouped by it.
        root: The key of the session, or of its topmost parent.
        user_id: The user of the session.
        agent_id: The agent of the session.
        model: The `model` in the metadata of the turn or, if there is none, the `model` of the session.
        day: The day of the turn, in UTC or in the time zone of the report, such as "2026-11-21".
        month: The month of the turn, such as "2026-11".
        turns: The number of turns, including compactions.
        sessions: The number of sessions that have these turns.
        usage: The sums of all numbers in the usage, under their stored names.
        input_tokens: The tokens of prompts, under any of the names that providers use. Anthropic does not count cached
            tokens as input.
        output_tokens: The tokens of answers.
        cached_tokens: The tokens of prompts that were read from the provider's cache.
        reasoning_tokens: The tokens of answers that are reasoning.
        cost_usd: The cost that is stored with the usage, or is calculated from `prices`; None without either.
    """

    key: str | None = Field(default=None, exclude_if=absent)
    root: str | None = Field(default=None, exclude_if=absent)
    user_id: str | None = Field(default=None, exclude_if=absent)
    agent_id: str | None = Field(default=None, exclude_if=absent)
    model: str | None = Field(default=None, exclude_if=absent)
    day: str | None = Field(default=None, exclude_if=absent)
    month: str | None = Field(default=None, exclude_if=absent)
    turns: int
    sessions: int
    usage: dict[str, Any]
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cost_usd: float | None = Field(default=None, exclude_if=absent)
