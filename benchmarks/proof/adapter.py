"""The interface of a store under test."""

from typing import Any, ClassVar, Protocol

LEASE = 1.0
"""The duration of the lease of a turn, in seconds."""


class Effects(Protocol):
    """The model and the tool of a turn, whose calls are logged outside of the store."""

    def model(self, request: str) -> str:
        """Pay for an answer to a request, and return it."""

    def tool(self, request: str) -> str:
        """Run the tool that the turn calls, and return its output."""

    def stored(self, kind: str, request: str) -> None:
        """Note that the store has acknowledged the result of the "model" or the "tool"."""


class Adapter(Protocol):
    """A store, as one process uses it. Texts of messages are unique in a session, and are also their ids.

    `can` names what the store documents: "batch" (several messages in one call), "ids" (a message with a
    known id is not stored again), "turn" (an interrupted turn can be finished by another process), "request"
    (a turn has an id, and is run once), "tool" (calls of tools are recorded), "answer" (a suspended turn
    takes one answer) and "follow" (events after a cursor). The methods of other names are not called.
    """

    can: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, url: str) -> None:
        """Open the store at a SQLAlchemy URL, and create its tables if they are missing."""

    def open(self, key: str) -> None:
        """Create a session."""

    def append(self, key: str, texts: list[str]) -> None:
        """Append messages in one call."""

    def read(self, key: str) -> list[str]:
        """Return the texts of all messages of users and models, in order."""

    def turn(self, key: str, request: str, effects: Effects) -> None:
        """Run a turn: store the request and the answer of the model."""

    def finish(self, key: str, effects: Effects) -> bool:
        """Finish the turns that other processes have left; return True if some remain."""

    def ask(self, key: str) -> None:
        """Suspend the session until there is an answer."""

    def answer(self, key: str, text: str) -> None:
        """Answer the suspension; raise if it has an answer."""

    def follow(self, key: str, cursor: Any) -> tuple[list[str], Any]:
        """Return the texts that were appended after a cursor (None: all), and the next cursor."""
