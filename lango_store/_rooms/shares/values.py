"""The values of the room."""

from pydantic import AwareDatetime, Field

from lango_store._values.value import Value, absent


class Share(Value):
    """A link to a session.

    Attributes:
        key: The key of the session.
        id: The id of the share, for `Conversation.unshare`. It is not secret, unlike the `token`.
        upto: The `seq` of the last message that the document can show.
        tools: True if the document shows tool calls and their results.
        created_at: The time of the share, in UTC.
        until: The time from which the link no longer works, in UTC; None if it has no end.
        shared_by: Who has shared the session, such as the id of a user; None if this is not known.
        token: The secret part of the link. Only the result of `Conversation.share` has it, because the database stores
            only a digest; otherwise None.
    """

    key: str
    id: str
    upto: int
    tools: bool = False
    created_at: AwareDatetime
    until: AwareDatetime | None = None
    shared_by: str | None = None
    token: str | None = Field(default=None, exclude_if=absent, repr=False)
