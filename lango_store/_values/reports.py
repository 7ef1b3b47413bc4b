"""The results of verbs over many sessions: pages of lists, statistics, findings, purges."""

from collections.abc import Callable
from datetime import datetime

from pydantic import Field

from lango_store._values.model import MessageRole, SessionInfo
from lango_store._values.value import Value, absent


class Page(Value):
    """One page of a list, and in `next` the cursor of the page after it, None at the end."""

    items: list[SessionInfo]
    next: str | None = None


class SearchHit(Value):
    """A message that was found, and in `snippet` a part of what it says.

    `places` are the words found there, each with the offsets of its start and its end. A greater `rank` is
    better; ranks of different searches cannot be compared.
    """

    key: str
    seq: int
    role: MessageRole
    author: str | None = Field(default=None, exclude_if=absent)
    created_at: datetime
    title: str | None = Field(default=None, exclude_if=absent)
    agent_id: str | None = Field(default=None, exclude_if=absent)
    user_id: str | None = Field(default=None, exclude_if=absent)
    snippet: str
    places: list[tuple[int, int]]
    rank: float


class SearchPage(Value):
    """One page of hits, the best first, and in `next` the offset of the page after it, None at the end.

    `waiting` counts changes that are not indexed yet, so that this search did not find them: 0 unless more than some
    thousands wait, nothing can be written, or the transaction is the caller's.

    `newest` is None if all matches were found. If there are too many to rank them in time, it is the number of newest
    messages that were searched instead. The hits are then in the order of the sessions that were changed last, with
    rank 0.
    """

    items: list[SearchHit]
    next: int | None = None
    waiting: int = 0
    newest: int | None = Field(default=None, exclude_if=absent)


class SearchStatus(Value):
    """The `state` of the search index: `disabled`, `ready`, or `unusable` for a `reason`.

    `indexed` counts the messages in it, `waiting` the changes that are not indexed yet.
    """

    state: str = "disabled"
    indexed: int = 0
    waiting: int = 0
    reason: str | None = Field(default=None, exclude_if=absent)


class AgentStats(Value):
    """The statistics of one agent, or with `agent_id` None of sessions without one."""

    agent_id: str | None
    sessions: int
    messages: int
    tokens: int


class Stats(Value):
    """A store summed up. Counts come from the sessions' own counters and are exact.

    `tokens` are those of messages, not the usage of turns. Records are not messages and have no tokens here.
    `bytes` is what the tables and their indexes take on disk.
    `expiring` counts sessions by when they expire: "expired", "within an hour", …, "never".
    """

    sessions: int
    expired: int
    turns: int
    messages: int
    records: int
    tokens: int
    bytes: int
    agents: list[AgentStats]
    expiring: dict[str, int]


class Finding(Value):
    """Something wrong in a store: what, where, and what to do about it; `repaired` once that was done."""

    name: str
    subject: str
    detail: str
    remedy: str
    repaired: bool = False


class ExpiryReport(Value):
    """The result of a purge, or with `dry_run` the result that it would have.

    Sessions were due by the time `at`. `oldest` lists the first that would go, on dry runs only. `held` names sessions
    that stayed, each with the foreign key of another table that refused its deletion; a dry run does not try.
    """

    sessions: int = 0
    messages: int = 0
    batches: int = 0
    seconds: float = 0.0
    at: datetime | None = None
    dry_run: bool = False
    oldest: list[SessionInfo] = Field(default_factory=list, exclude_if=absent)
    held: dict[str, str] = Field(default_factory=dict, exclude_if=absent)


class Progress(Value):
    """The progress of work on a table: `rows` of about `total`."""

    table: str
    rows: int
    total: int


OnProgress = Callable[[Progress], None]
"""Called after each step with the progress."""
