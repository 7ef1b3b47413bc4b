"""The tables of the core."""

from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlmodel import Field

from lango_store._rows.buckets import bucket
from lango_store._rows.columns import KEY_TEXT, TEXT, JsonColumn, RoleColumn, TimeColumn
from lango_store._rows.definitions import BASELINE as BASELINE
from lango_store._rows.definitions import (
    NOT_STORED_ELSEWHERE,
    SessionPart,
    counter,
    index_where,
    index_where_set,
    key,
    session_reference,
    stored,
)
from lango_store._rows.definitions import Base as Base
from lango_store._rows.payloads import fill
from lango_store._values.model import Message, MessageRole, SessionInfo
from lango_store._values.value import copied

VERSION_TABLE: Final = "lango_store_version"

FEATURE_TABLE: Final = "lango_feature"

KNOWN_FEATURES: Final = frozenset({"payloads"})
"""The features that this release supports. A database that uses any other feature raises `UnknownFeature`."""


class SessionColumns(Base):
    """The columns of `lango_session` that the core uses. `SessionRow` also has those of rooms."""

    key: str = key()
    agent_id: str | None = Field(default=None, sa_type=KEY_TEXT)
    user_id: str | None = Field(default=None, sa_type=KEY_TEXT)
    title: str | None = Field(default=None, sa_type=TEXT)
    model: str | None = Field(default=None, sa_type=TEXT)
    settings: Any = Field(default=None, sa_type=JsonColumn, nullable=True)
    meta: Any = Field(default=None, sa_column=sa.Column("metadata", JsonColumn, nullable=True))
    tools: Any = Field(default=None, sa_type=JsonColumn, nullable=True)
    created_at: datetime = Field(sa_type=TimeColumn)
    updated_at: datetime = Field(sa_type=TimeColumn)
    updated_bucket: datetime | None = bucket("updated_at")
    expires_at: datetime | None = Field(default=None, sa_type=TimeColumn)
    expires_bucket: datetime | None = bucket("expires_at")
    ttl_seconds: float | None = Field(default=None, sa_type=sa.Double)
    last_seq: int = counter()
    message_count: int = counter()
    record_count: int = counter()
    token_count: int = counter()
    turn_count: int = counter()
    last_turn_no: int = counter()
    summary_turn: int | None = Field(default=None, sa_type=sa.BigInteger)
    summarized_upto: int = counter()
    last_consolidated: int = counter()
    forked_from: str | None = Field(default=None, sa_type=KEY_TEXT)
    incarnation: int = counter()
    revision: int = counter()
    hold: str | None = Field(default=None, sa_type=TEXT)

    @classmethod
    def live(cls, now: datetime) -> sa.ColumnElement[bool]:
        """Return an SQL condition that is true for live sessions.

        Args:
            now: The current time, an aware datetime.

        Raises:
            ValueError: `now` has no time zone.
        """
        if now.tzinfo is None:
            raise ValueError("now has no time zone: use datetime.now(UTC)")
        return live_at(now)

    def to_info(self) -> SessionInfo:
        """Convert the row to the value that `Conversation.info` returns."""
        return SessionInfo.model_validate(_values(self, SessionInfo))


OF_SESSION: Final = SessionPart(
    constraints=(
        sa.PrimaryKeyConstraint("key", name="pk_lango_session"),
        # No index contains a column that every append changes: see "Indexes" in docs/why/decisions.md.
        sa.Index("ix_lango_session_updated_bucket", "updated_bucket"),
        index_where_set("user_id", "ix_lango_session_user_id", "user_id", "updated_bucket"),
        index_where_set("agent_id", "ix_lango_session_agent_id", "agent_id", "updated_bucket"),
        index_where_set("expires_bucket", "ix_lango_session_expires_bucket", "expires_bucket"),
    ),
    unset=("incarnation", "revision", "updated_bucket", "expires_bucket"),
)


class TurnColumns(Base):
    """The columns of turns and of versions of them. No field has an `sa_column`, which tables cannot share."""

    session_key: str = Field(sa_type=KEY_TEXT)
    turn_no: int = Field(sa_type=sa.BigInteger, sa_column_kwargs={"autoincrement": False})
    id: str | None = Field(default=None, sa_type=KEY_TEXT)
    kind: str = Field(sa_type=TEXT)
    first_seq: int = Field(sa_type=sa.BigInteger)
    last_seq: int = Field(sa_type=sa.BigInteger)
    replaced_upto: int | None = Field(default=None, sa_type=sa.BigInteger)
    usage: Any = Field(default=None, sa_type=JsonColumn, nullable=True)
    meta: Any = Field(default=None, sa_type=JsonColumn, nullable=True, sa_column_kwargs={"name": "metadata"})
    extra: Any = Field(default=None, sa_type=JsonColumn, nullable=True)
    created_at: datetime = Field(sa_type=TimeColumn)
    copied_from: str | None = Field(default=None, sa_type=KEY_TEXT)


class MessageColumns(Base):
    """The columns of messages and of versions of them."""

    session_key: str = Field(sa_type=KEY_TEXT)
    seq: int = Field(sa_type=sa.BigInteger, sa_column_kwargs={"autoincrement": False})
    turn_no: int | None = Field(default=None, sa_type=sa.BigInteger)
    id: str | None = Field(default=None, sa_type=KEY_TEXT)
    role: MessageRole = Field(sa_type=RoleColumn)
    author: str | None = Field(default=None, sa_type=TEXT)
    name: str | None = Field(default=None, sa_type=TEXT)
    tool_call_id: str | None = Field(default=None, sa_type=KEY_TEXT)
    text: str | None = Field(default=None, sa_type=TEXT)
    content: Any = Field(default=None, sa_type=JsonColumn, nullable=True)
    tool_calls: Any = Field(default=None, sa_type=JsonColumn, nullable=True)
    tokens: int | None = Field(default=None, sa_type=sa.BigInteger)
    extra: Any = Field(default=None, sa_type=JsonColumn, nullable=True)
    created_at: datetime = Field(sa_type=TimeColumn)
    sent: Any = Field(default=None, sa_type=JsonColumn, nullable=True)
    payloads: Any = Field(default=None, sa_type=JsonColumn, nullable=True)
    logged_at: datetime | None = Field(default=None, sa_type=TimeColumn)
    taken_by: str | None = Field(default=None, sa_type=KEY_TEXT)
    model: str | None = Field(default=None, sa_type=TEXT)
    provider: str | None = Field(default=None, sa_type=TEXT)
    request: str | None = Field(default=None, sa_type=TEXT)


class TurnRow(TurnColumns, table=True):
    """A row of `lango_turn`: one turn, or one compaction.

    Its messages have its `turn_no`, and a `seq` from `first_seq` to `last_seq`.

    Attributes:
        meta: The column `metadata`. SQLAlchemy reserves that name.
        copied_from: The key of the session that the usage of the turn was spent in; NULL if it is this session.
    """

    __tablename__ = "lango_turn"
    __table_args__ = (
        sa.PrimaryKeyConstraint("session_key", "turn_no", name="pk_lango_turn"),
        session_reference("fk_lango_turn_session"),
        index_where_set("id", "uq_lango_turn_id", "session_key", "id", unique=True),
        stored("turn", name="turn {turn_no}", ids=("id",)),
    )


class MessageRow(MessageColumns, table=True):
    """A row of `lango_message`: one message or record.

    Attributes:
        text: The content of the message, if it is text: `MessageRow.text == "hi"`. NULL for any other content.
        content: Content that is not text, as JSON; a content of None is the JSON `null`. Text with a NUL or a lone
            surrogate is stored here too, escaped, because a column of text cannot store it. NULL if `text` is set.
        payloads: References to the large strings of the message, which are stored in `lango_payload`; NULL if there are
            none. Each of these strings is an empty string in the other columns.
        logged_at: The time at which the message entered the log; NULL if `created_at` is that time.
        taken_by: The id of the turn in progress that wrote the message or took it from the inbox; NULL for any other
            message.
    """

    __tablename__ = "lango_message"
    __table_args__ = (
        sa.PrimaryKeyConstraint("session_key", "seq", name="pk_lango_message"),
        session_reference("fk_lango_message_session"),
        sa.CheckConstraint("(text IS NULL) <> (content IS NULL)", name="ck_lango_message_content"),
        index_where_set("id", "uq_lango_message_id", "session_key", "id", unique=True),
        index_where_set("payloads", "ix_lango_message_payloads", "session_key", "seq"),
        index_where("taken_by IS NOT NULL AND turn_no IS NULL", "ix_lango_message_taken_by", "session_key", "taken_by"),
        stored("message", ids=("taken_by",)),
    )

    def to_message(self) -> Message:
        """Convert the row to the value that `Conversation.messages(payloads="reference")` returns."""
        values = _values(self, Message)
        if self.text is not None:
            values["content"] = self.text
        if self.payloads is not None:
            values = fill(copied(values), self.payloads)
        return Message.model_validate(values)


class PayloadRow(Base, table=True):
    """A row of `lango_payload`: a large string of the messages of a session, stored once."""

    __tablename__ = "lango_payload"
    __table_args__ = (
        sa.PrimaryKeyConstraint("session_key", "digest", name="pk_lango_payload"),
        session_reference("fk_lango_payload_session"),
        stored("payload", name="payload {digest}", since="0105"),
    )

    session_key: str = key()
    digest: str = key()
    body: str = Field(sa_type=TEXT)


class ChangeRow(Base, table=True):
    """A row of `lango_change`: one change of a session's log, with the `seq` that it used up.

    Attributes:
        undo_until: The time until which the removed rows are kept; NULL if they are not kept.
        added_upto: The last `seq` of the messages that the change itself added, such as a summary; otherwise NULL.
        consolidated: The session's `last_consolidated` before the change; NULL if removed rows are not kept, or if the
            change only replaced content.
    """

    __tablename__ = "lango_change"
    __table_args__ = (
        sa.PrimaryKeyConstraint("session_key", "seq", name="pk_lango_change"),
        session_reference("fk_lango_change_session"),
        index_where_set("undo_until", "ix_lango_change_undo_until", "undo_until"),
        stored("change", since="0101", unset=("undo_until", "consolidated")),
    )

    session_key: str = key()
    seq: int = Field(sa_column=sa.Column(sa.BigInteger, nullable=False, autoincrement=False))
    kind: str = Field(sa_type=TEXT)
    after_seq: int = Field(sa_type=sa.BigInteger)
    changed_by: str | None = Field(default=None, sa_type=TEXT)
    changed_at: datetime = Field(sa_type=TimeColumn)
    undo_until: datetime | None = Field(default=None, sa_type=TimeColumn)
    added_upto: int | None = Field(default=None, sa_type=sa.BigInteger)
    consolidated: int | None = Field(default=None, sa_type=sa.BigInteger)


class ValueRow(Base, table=True):
    """A row of `lango_value`: one named value of a session."""

    __tablename__ = "lango_value"
    __table_args__ = (
        sa.PrimaryKeyConstraint("session_key", "name", name="pk_lango_value"),
        session_reference("fk_lango_value_session"),
        stored("value", name="value {name!r}"),
    )

    session_key: str = key()
    name: str = key()
    value: Any = Field(sa_column=sa.Column(JsonColumn, nullable=False))
    updated_at: datetime = Field(sa_type=TimeColumn)


class SharedValueRow(Base, table=True):
    """A row of `lango_shared_value`: one named value of a scope."""

    __tablename__ = "lango_shared_value"
    __table_args__ = (
        sa.PrimaryKeyConstraint("scope", "name", name="pk_lango_shared_value"),
        stored("shared_value", name="value {name!r}"),
    )

    scope: str = key()
    name: str = key()
    value: Any = Field(sa_column=sa.Column(JsonColumn, nullable=False))
    updated_at: datetime = Field(sa_type=TimeColumn)


class FeatureRow(Base, table=True):
    """A row of `lango_feature`: a feature that a release must know to use the tables."""

    __tablename__ = FEATURE_TABLE
    __table_args__ = (sa.PrimaryKeyConstraint("name", name="pk_lango_feature"), NOT_STORED_ELSEWHERE)

    name: str = key()


def _values(row: SessionColumns | MessageRow, kind: type[SessionInfo | Message]) -> dict[str, Any]:
    """Return the columns of a row by the names of the value's fields, without NULLs."""
    named = {name: getattr(row, "meta" if name == "metadata" else name, None) for name in kind.model_fields}
    return {name: value for name, value in named.items() if value is not None}


# The only comparison of `expires_at` with a time: it is made in SQL, never in Python.


def _expires_at() -> sa.Column[Any]:
    return Base.metadata.tables["lango_session"].c.expires_at


def _expires_bucket() -> sa.Column[Any]:
    return Base.metadata.tables["lango_session"].c.expires_bucket


def live_at(moment: datetime | sa.ColumnElement[datetime]) -> sa.ColumnElement[bool]:
    """Return the condition that a session is live at a time."""
    return sa.or_(_expires_at().is_(None), moment < _expires_at())


def expired_at(moment: datetime | sa.ColumnElement[datetime]) -> sa.ColumnElement[bool]:
    """Return the condition that a session has expired at a time."""
    return sa.and_(moment >= _expires_bucket(), moment >= _expires_at())  # the bucket has an index
