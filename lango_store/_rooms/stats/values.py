"""Totals of a store."""

from datetime import datetime

from lango_store._values.value import Value


class AgentStats(Value):
    """The statistics of one agent.

    Attributes:
        agent_id: The agent; None for the sessions without an agent.
        sessions: The number of sessions.
        messages: The number of messages, without records.
        tokens: The sum of the messages' tokens.
    """

    agent_id: str | None
    sessions: int
    messages: int
    tokens: int


class Stats(Value):
    """The totals of a store.

    The counts are exact: they are the sums of the counters of all sessions.

    Attributes:
        sessions: The number of sessions, including expired ones.
        expired: The number of sessions that have expired and are not purged yet.
        turns: The number of turns, including compactions.
        messages: The number of messages, without records.
        records: The number of records.
        tokens: The sum of the messages' tokens, without records. This is not the usage of turns.
        bytes: The size of the tables and their indexes on disk, in bytes.
        payload_bytes: The size of the payloads, the large strings that are stored separately from messages, in bytes.
        saved_bytes: The bytes that the payloads would need in addition if each message had its own copy.
        owed_turns: The number of turns that live sessions are owed and that no process is running, without those that
            were given up. `Store.owed` lists them.
        owed_since: The time from which the first of these turns is due, in UTC; None without such turns.
        given_up_turns: The number of turns that were given up. `Conversation.turns.retry` makes one due again.
        unknown_calls: The number of tool calls of live sessions that may have run and have no result.
            `Store.calls.unknown` lists them.
        unanswered_suspensions: The number of suspensions of live sessions that wait for an answer. Expired suspensions
            do not count.
        alternatives: The number of alternatives that are set aside, in all sessions.
        alternative_messages: The number of their messages, without records. `messages` does not count them.
        agents: The statistics of each agent, sorted by the number of messages, largest first.
        expiring: The number of sessions by the time until they expire: "expired", "within an hour", "within a day",
            "within a week", "within 30 days", "later" and "never". Each session is counted once.
    """

    sessions: int
    expired: int
    turns: int
    messages: int
    records: int
    tokens: int
    bytes: int
    payload_bytes: int
    saved_bytes: int
    owed_turns: int = 0
    owed_since: datetime | None = None
    given_up_turns: int = 0
    unknown_calls: int = 0
    unanswered_suspensions: int = 0
    alternatives: int = 0
    alternative_messages: int = 0
    agents: list[AgentStats]
    expiring: dict[str, int]
