"""A session with its messages. A separate module, since it imports `document`, which imports `model`."""

from collections.abc import Sequence

from pydantic import Field

from lango_store._values.document import document, framed
from lango_store._values.model import Message, SessionInfo, Turn


class Session(SessionInfo):
    """A session with its messages, in the order of their `seq`."""

    messages: list[Message] = Field(default_factory=list)

    def to_html(self, *, turns: Sequence[Turn] = ()) -> str:
        """Return the session as an HTML document for people, in one text: no script, no request to anywhere.

        Each of the `turns`, such as `Conversation.turns()` returns, is shown before its messages.
        """
        return "".join(document(self, self.messages, turns))

    def _repr_html_(self) -> str:
        return framed(self.to_html())
