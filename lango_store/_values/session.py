"""A session with its messages. A separate module, because rooms add methods, and import `model`."""

from pydantic import Field

from lango_store._rooms.documents import groups as documents
from lango_store._values.model import Message, SessionInfo


class Session(documents.InSession, SessionInfo):
    """A session with its messages.

    Attributes:
        messages: The messages of the window: after a compaction first the summary, then the other messages in the order
            of their `seq`. The other attributes are those of `SessionInfo`.
    """

    messages: list[Message] = Field(default_factory=list)
