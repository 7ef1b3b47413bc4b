"""The table of the room."""

from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlmodel import Field

from lango_store._rows.columns import TEXT, JsonColumn, TimeColumn
from lango_store._rows.definitions import Base, key, session_reference, stored


class ShareRow(Base, table=True):
    """A row of `lango_share`: a link to the messages of a session up to `upto`.

    Attributes:
        digest: The SHA-256 digest of the token.
        tools: 1 if the document shows tool calls and their results, otherwise 0.
        left_out: The seqs of messages that were removed or set aside at the time of the share, and that an undo or a
            switch could restore. NULL if there were none.
    """

    __tablename__ = "lango_share"
    __table_args__ = (
        sa.PrimaryKeyConstraint("session_key", "digest", name="pk_lango_share"),
        session_reference("fk_lango_share_session"),
        sa.Index("ix_lango_share_digest", "digest"),
        sa.Index("ix_lango_share_created_at", "created_at", "session_key", "digest"),
        stored(
            "share",
            name="share {digest}",
            since="0116",
            in_forks=False,
            ids=("digest",),
            types={"left_out": (list[int], "a list of seqs")},
        ),
    )

    session_key: str = key()
    digest: str = key()
    upto: int = Field(sa_type=sa.BigInteger)
    tools: int = Field(sa_type=sa.BigInteger)
    created_at: datetime = Field(sa_type=TimeColumn)
    until: datetime | None = Field(default=None, sa_type=TimeColumn)
    shared_by: str | None = Field(default=None, sa_type=TEXT)
    left_out: Any = Field(default=None, sa_type=JsonColumn, nullable=True)


SHARE: Final = Base.metadata.tables["lango_share"]
