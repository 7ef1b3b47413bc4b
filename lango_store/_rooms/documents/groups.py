"""The methods of the room."""

from collections.abc import Sequence

from lango_store._rooms.documents.document import document
from lango_store._rooms.documents.page import framed
from lango_store._rooms.tool_calls.values import Suspension
from lango_store._values.model import Message, SessionInfo, Turn


class InSession(SessionInfo):
    """Adds the members of the room to `Session`."""

    messages: list[Message]

    def to_html(self, *, turns: Sequence[Turn] = (), suspensions: Sequence[Suspension] = ()) -> str:
        """Return the session as an HTML document for people.

        The document is self-contained: it has no script and loads nothing. Stored text is escaped.

        Messages are rendered as Markdown, with tables; the first 4,000 characters of code in a message are colored. Raw
        HTML, linked images and titles of links are not rendered, and only `http`, `https` and `mailto` links can be
        followed. Text without markup, results of tools, texts of more than 50,000 characters and those that are nested
        very deeply keep their spaces and line breaks. Characters that would reverse text or control a terminal are
        shown as codes.

        Calls with their results, thinking and long texts are collapsed, and in a session of 50 messages or more also
        text results; then an index of the turns follows the messages. Results of tools that failed are labeled
        "failed". GIF, JPEG, PNG and WebP images in base64 are shown, and make the document large. Blocks of an unknown
        kind are shown as JSON.

        Args:
            turns: The turns of the session, from `Conversation.turns()`. Each turn is shown before its messages.
                Default: no turns are shown.
            suspensions: The suspensions of the session, from `Conversation.suspensions.list`. Each question is shown
                with its answer, who has answered, and why. Default: none are shown.

        Returns:
            The whole document as one text.
        """
        return "".join(document(self, self.messages, turns, suspensions))

    def _repr_html_(self) -> str:
        return framed(self.to_html())
