"""The tables of the room: copies of messages and turns that a change removed or replaced."""

from typing import Final

import sqlalchemy as sa
from sqlmodel import Field

from lango_store._rows.definitions import Base, session_reference, versions_of
from lango_store.tables.core import MessageColumns, TurnColumns


class RemovedMessageRow(MessageColumns, table=True):
    """A row of `lango_removed_message`: a message that a change removed or replaced.

    Attributes:
        removed_at: The `seq` of that change.
        next_at: The `seq` of the change that stored the next version of the message; NULL if there is none.
    """

    __tablename__ = "lango_removed_message"
    __table_args__ = (
        sa.PrimaryKeyConstraint("session_key", "seq", "removed_at", name="pk_lango_removed_message"),
        session_reference("fk_lango_removed_message_session"),
        sa.Index("ix_lango_removed_message_removed_at", "session_key", "removed_at"),
        versions_of("lango_message"),
    )

    removed_at: int = Field(sa_type=sa.BigInteger, sa_column_kwargs={"autoincrement": False})
    next_at: int | None = Field(default=None, sa_type=sa.BigInteger)


class RemovedTurnRow(TurnColumns, table=True):
    """A row of `lango_removed_turn`: a turn before a change removed or shortened it.

    Attributes:
        removed_at: The `seq` of that change.
        next_at: The `seq` of the change that stored the next version of the turn; NULL if there is none.
        meta: The column `metadata`. SQLAlchemy reserves that name.
    """

    __tablename__ = "lango_removed_turn"
    __table_args__ = (
        sa.PrimaryKeyConstraint("session_key", "turn_no", "removed_at", name="pk_lango_removed_turn"),
        session_reference("fk_lango_removed_turn_session"),
        versions_of("lango_turn"),
    )

    removed_at: int = Field(sa_type=sa.BigInteger, sa_column_kwargs={"autoincrement": False})
    next_at: int | None = Field(default=None, sa_type=sa.BigInteger)


REMOVED_MESSAGE: Final = Base.metadata.tables["lango_removed_message"]
REMOVED_TURN: Final = Base.metadata.tables["lango_removed_turn"]
