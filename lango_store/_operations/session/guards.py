"""Guards: what a room adds to the writes of a session, such as the condition that a turn still has its lease."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect, Moment
from lango_store._values.model import Message


class GuardSql:
    """The SQL of all guards of one kind. It is the key of a cache of statements, so it is created once.

    Attributes:
        conditions: The conditions that the session's row has to meet.
        values: A function of the dialect and the time that returns the values that a guarded write sets in this row.
    """

    def __init__(
        self,
        conditions: tuple[sa.ColumnElement[bool], ...],
        values: Callable[[Dialect, sa.ColumnElement[datetime]], dict[str, Any]],
    ) -> None:
        self.conditions = conditions
        self.values = values


class Guard(Protocol):
    """A guard of the writes of one caller, which `Expected` or a `Context` names.

    A write whose guard does not match the session's row is refused. The messages of an append belong to the turn
    `turn_id`, which is not saved yet.
    """

    @property
    def sql(self) -> GuardSql:
        """The conditions and values of the writes."""

    @property
    def turn_id(self) -> str:
        """The id of the turn that the appended messages belong to."""

    def bound(self, dialect: Dialect, now: Moment) -> dict[str, Any]:
        """Return the values to bind, besides `now`, in a statement with `sql`."""

    def check(self, connection: AnyConnection, key: str) -> None:
        """Raise the error of a session whose row does not meet the conditions."""

    def renew(self, connection: AnyConnection, now: Moment, key: str) -> None:
        """Lock the session's row and set the values; raise the error if the row does not meet the conditions."""

    def needs_more(self, new: Sequence[Message]) -> bool:
        """Return True if an append of these messages has to write more, with `write_more` in its transaction."""

    def write_more(self, connection: AnyConnection, key: str) -> None:
        """Write what such an append has to write."""

    def note_more(self) -> None:
        """Note that such an append was committed."""
