"""The tables of the room."""

from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlmodel import Field

from lango_store._rows.columns import TEXT, JsonColumn, TimeColumn
from lango_store._rows.definitions import Base, index_where, index_where_set, key, session_reference, stored


class CallRow(Base, table=True):
    """A row of `lango_call`: a tool call that was begun.

    `message_seq` and `position` identify the call.
    """

    __tablename__ = "lango_call"
    __table_args__ = (
        sa.PrimaryKeyConstraint("session_key", "effect_key", name="pk_lango_call"),
        session_reference("fk_lango_call_session"),
        sa.Index("uq_lango_call_position", "session_key", "message_seq", "position", unique=True),
        index_where("result_seq IS NULL", "ix_lango_call_open", "until"),
        stored(
            "call",
            name="call of message {message_seq}",
            since="0104",
            in_forks=False,
            ids=("effect_key",),
            of_message="message_seq",
            kept_aside=True,
            names_calls=True,
            fixes_calls=True,
        ),
    )

    session_key: str = key()
    effect_key: str = key()
    message_seq: int = Field(sa_type=sa.BigInteger)
    position: int = Field(sa_type=sa.BigInteger)
    token: int | None = Field(default=None, sa_type=sa.BigInteger)
    begun_at: datetime = Field(sa_type=TimeColumn)
    until: datetime = Field(sa_type=TimeColumn)
    result_seq: int | None = Field(default=None, sa_type=sa.BigInteger)


class SuspensionRow(Base, table=True):
    """A row of `lango_suspension`: a request for an answer, and the state to continue from.

    Attributes:
        handle: If a tool call waits for its result from outside, the SHA-256 digest of its handle, which is the state.
    """

    __tablename__ = "lango_suspension"
    __table_args__ = (
        sa.PrimaryKeyConstraint("session_key", "digest", name="pk_lango_suspension"),
        session_reference("fk_lango_suspension_session"),
        index_where("answered_at IS NULL", "ix_lango_suspension_open", "created_at", "session_key", "digest"),
        index_where_set("handle", "ix_lango_suspension_handle", "handle", "session_key", "digest"),
        stored(
            "suspension",
            name="suspension of message {message_seq}",
            since="0104",
            in_forks=False,
            ids=("digest",),
            types={"positions": (list[int], "a list of positions")},
            of_message="message_seq",
            redacted=("state", "reason", "answer", "answered_why"),
            names_calls=True,
        ),
    )

    session_key: str = key()
    digest: str = key()
    message_seq: int | None = Field(default=None, sa_type=sa.BigInteger)
    positions: Any = Field(default=None, sa_type=JsonColumn, nullable=True)
    state: Any = Field(default=None, sa_type=JsonColumn, nullable=True)
    reason: str | None = Field(default=None, sa_type=TEXT)
    created_at: datetime = Field(sa_type=TimeColumn)
    due_at: datetime | None = Field(default=None, sa_type=TimeColumn)
    answer: Any = Field(default=None, sa_type=JsonColumn, nullable=True)
    answered_at: datetime | None = Field(default=None, sa_type=TimeColumn)
    answered_by: str | None = Field(default=None, sa_type=TEXT)
    answered_why: str | None = Field(default=None, sa_type=TEXT)
    handle: str | None = Field(default=None, sa_type=TEXT)


CALL: Final = Base.metadata.tables["lango_call"]
SUSPENSION: Final = Base.metadata.tables["lango_suspension"]
