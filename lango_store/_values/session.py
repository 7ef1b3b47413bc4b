"""A session with its messages. A separate module, because it imports `document`, which imports `model`."""

from collections.abc import Sequence

from pydantic import Field

from lango_store._values.document import document, framed
from lango_store._values.model import Message, SessionInfo, Turn


class Session(SessionInfo):
    """A session with its messages.

    Attributes:
        messages: The messages of the window: after a compaction first the summary, then the other messages in the order
            of their `seq`. The other attributes are those of `SessionInfo`.
    """

    messages: list[Message] = Field(default_factory=list)

    def to_html(self, *, turns: Sequence[Turn] = ()) -> str:
        """Return the session as an HTML document for people.

        The document is self-contained: it has no script and loads nothing. Stored text is escaped.

        Args:
            turns: The turns of the session, from `Conversation.turns()`. Each turn is shown before its messages.
                Default: no turns are shown.

        Returns:
            The whole document as one text.
        """
        return "".join(document(self, self.messages, turns))

    def _repr_html_(self) -> str:
        return framed(self.to_html())
