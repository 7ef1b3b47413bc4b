"""The tables of the room, and its columns of the table of sessions."""

from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlmodel import Field

from lango_store._rows.columns import KEY_TEXT, TEXT, JsonColumn, TimeColumn
from lango_store._rows.definitions import Base, SessionPart, index_where_set, key, session_reference, stored


class SessionColumns(Base):
    """The columns that the room adds to `SessionRow`: the lease of a turn, and the turn that the session is owed."""

    lease_token: int | None = Field(default=None, sa_type=sa.BigInteger)
    lease_turn: str | None = Field(default=None, sa_type=KEY_TEXT)
    lease_until: datetime | None = Field(default=None, sa_type=TimeColumn)
    owed_at: datetime | None = Field(default=None, sa_type=TimeColumn)
    waiting: int | None = Field(default=None, sa_type=sa.BigInteger)
    attempts: int | None = Field(default=None, sa_type=sa.BigInteger)
    last_error: str | None = Field(default=None, sa_type=TEXT)


OF_SESSION: Final = SessionPart(
    constraints=(index_where_set("owed_at", "ix_lango_session_owed_at", "owed_at", "key"),),
    unset=("lease_token", "lease_until"),
    ids=("lease_turn",),
)


class DraftRow(Base, table=True):
    """A row of `lango_draft`: a piece of an answer that is not in the log yet."""

    __tablename__ = "lango_draft"
    __table_args__ = (
        sa.PrimaryKeyConstraint("session_key", "n", name="pk_lango_draft"),
        session_reference("fk_lango_draft_session"),
        stored(
            "draft", name="piece {n}", since="0103", in_forks=False, ids=("turn_id",), types={"piece": (str, "text")}
        ),
    )

    session_key: str = key()
    n: int = Field(sa_column=sa.Column(sa.BigInteger, nullable=False, autoincrement=False))
    token: int = Field(sa_type=sa.BigInteger)
    turn_id: str = Field(sa_type=KEY_TEXT)
    piece: Any = Field(sa_column=sa.Column(JsonColumn, nullable=False))
    written_at: datetime = Field(sa_type=TimeColumn)


class InboxRow(Base, table=True):
    """A row of `lango_inbox`: a message that waits for the next turn. `n` is the order of arrival.

    Attributes:
        message: The fields of the message, except `id` and `created_at`.
        due_at: The time from which a turn takes the message; NULL for the next turn.
    """

    __tablename__ = "lango_inbox"
    __table_args__ = (
        sa.PrimaryKeyConstraint("session_key", "n", name="pk_lango_inbox"),
        session_reference("fk_lango_inbox_session"),
        index_where_set("id", "uq_lango_inbox_id", "session_key", "id", unique=True),
        stored("inbox_message", name="inbox message {n}", since="0103", in_forks=False, embedded="message"),
    )

    session_key: str = key()
    n: int = Field(sa_column=sa.Column(sa.BigInteger, nullable=False, autoincrement=False))
    id: str | None = Field(default=None, sa_type=KEY_TEXT)
    message: Any = Field(sa_column=sa.Column(JsonColumn, nullable=False))
    created_at: datetime = Field(sa_type=TimeColumn)
    due_at: datetime | None = Field(default=None, sa_type=TimeColumn)


DRAFT: Final = Base.metadata.tables["lango_draft"]
INBOX: Final = Base.metadata.tables["lango_inbox"]
