"""The tables of the room: alternatives of a session, with the messages and turns that are set aside."""

from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlmodel import Field

from lango_store._rows.columns import TimeColumn
from lango_store._rows.definitions import (
    Base,
    SessionPart,
    index_where_set,
    key,
    session_reference,
    stored,
    versions_of,
)
from lango_store.tables.core import MessageColumns, TurnColumns

_SINCE: Final = "0119"


class SessionColumns(Base):
    """The column that the room adds to `SessionRow`: the number of alternatives; NULL if there are none."""

    alternatives: int | None = Field(default=None, sa_type=sa.BigInteger, sa_column_kwargs={"info": {"aside": True}})


OF_SESSION: Final = SessionPart()


class AlternativeRow(Base, table=True):
    """A row of `lango_alternative`: a part of the log that is set aside.

    Attributes:
        first_seq: The `seq` of its first message, which identifies it.
        last_seq: The `seq` of its last message.
        after_seq: The `seq` of the message after which it differs from the log; 0 for the start of the session.
        within: The `first_seq` of the alternative that has this message; NULL if it is in the log.
        message_count: The number of messages, without records.
    """

    __tablename__ = "lango_alternative"
    __table_args__ = (
        sa.PrimaryKeyConstraint("session_key", "first_seq", name="pk_lango_alternative"),
        session_reference("fk_lango_alternative_session"),
        stored("alternative", name="alternative {first_seq}", since=_SINCE, in_forks=False),
    )

    session_key: str = key()
    first_seq: int = Field(sa_type=sa.BigInteger, sa_column_kwargs={"autoincrement": False})
    last_seq: int = Field(sa_type=sa.BigInteger)
    after_seq: int = Field(sa_type=sa.BigInteger)
    within: int | None = Field(default=None, sa_type=sa.BigInteger)
    message_count: int = Field(sa_type=sa.BigInteger)
    set_aside_at: datetime = Field(sa_type=TimeColumn)


class AlternativeMessageRow(MessageColumns, table=True):
    """A row of `lango_alternative_message`: a message that is set aside.

    Attributes:
        alternative: The `first_seq` of its alternative.
    """

    __tablename__ = "lango_alternative_message"
    __table_args__ = (
        sa.PrimaryKeyConstraint("session_key", "seq", name="pk_lango_alternative_message"),
        session_reference("fk_lango_alternative_message_session"),
        index_where_set("id", "uq_lango_alternative_message_id", "session_key", "id", unique=True),
        sa.Index("ix_lango_alternative_message_alternative", "session_key", "alternative"),
        versions_of("lango_message", "alternative_message", since=_SINCE, in_forks=False, ids=("taken_by",)),
    )

    alternative: int = Field(sa_type=sa.BigInteger)


class AlternativeTurnRow(TurnColumns, table=True):
    """A row of `lango_alternative_turn`: a turn that is set aside.

    Attributes:
        alternative: The `first_seq` of its alternative.
        meta: The column `metadata`. SQLAlchemy reserves that name.
    """

    __tablename__ = "lango_alternative_turn"
    __table_args__ = (
        sa.PrimaryKeyConstraint("session_key", "turn_no", name="pk_lango_alternative_turn"),
        session_reference("fk_lango_alternative_turn_session"),
        versions_of("lango_turn", "alternative_turn", name="turn {turn_no}", since=_SINCE, in_forks=False, ids=("id",)),
    )

    alternative: int = Field(sa_type=sa.BigInteger)


ALTERNATIVE: Final = Base.metadata.tables["lango_alternative"]
ALTERNATIVE_MESSAGE: Final = Base.metadata.tables["lango_alternative_message"]
ALTERNATIVE_TURN: Final = Base.metadata.tables["lango_alternative_turn"]
