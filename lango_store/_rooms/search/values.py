"""The values of the room."""

from datetime import datetime

from pydantic import Field

from lango_store._values.model import MessageRole
from lango_store._values.reports import Page
from lango_store._values.value import Value, absent


class SearchHit(Value):
    """One message that a search found.

    Attributes:
        key: The key of the message's session.
        seq: The `seq` of the message.
        role: The role of the message.
        author: The author of the message, or None.
        created_at: The time of the message, in UTC.
        title: The title of the session, or None.
        agent_id: The agent of the session, or None.
        user_id: The user of the session, or None.
        snippet: The part of the message's text with the most matching words, up to about 200 characters.
        places: The start and the end of each matching word, as offsets in `snippet`; the end is exclusive.
        rank: The relevance: a greater number is a better match. Ranks of different searches are not comparable. 0 if
            the page has `newest`.
        alternative: The id of the alternative that has the message; None if the log has it.
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
    alternative: int | None = Field(default=None, exclude_if=absent)


class SearchPage(Page[SearchHit]):
    """One page of the hits of a search, best match first.

    Attributes:
        items: The hits.
        next: The `cursor` to pass to `search` for the next page; None on the last page.
        waiting: The number of writes to messages that are not indexed yet, so that this search did not see them. A
            search first indexes what waits, so the number is 0, except if more than 5,000 writes wait, if the database
            is read-only, or in your own transaction.
        newest: None if all messages were searched. If too many messages match to rank them in time, the number of
            newest messages that were searched instead. The hits are then sorted by the last activity of their session,
            and have the rank 0. With `alternatives`, the number of messages that were compared.
    """

    waiting: int = 0
    newest: int | None = Field(default=None, exclude_if=absent)


class SearchStatus(Value):
    """The status of the search index.

    Attributes:
        state: `disabled` without an index, `ready`, or `unusable` if the index is incomplete or damaged.
        indexed: The number of messages in the index.
        waiting: The number of writes to messages that are not indexed yet.
        reason: The reason for the state `unusable`; otherwise None.
    """

    state: str = "disabled"
    indexed: int = 0
    waiting: int = 0
    reason: str | None = Field(default=None, exclude_if=absent)
