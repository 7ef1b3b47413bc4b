"""The table of the room."""

from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlmodel import Field

from lango_store._rows.columns import KEY_TEXT, TimeColumn
from lango_store._rows.definitions import Base, index_where_set, key, stored


class BudgetRow(Base, table=True):
    """A row of `lango_budget`: what turns have used in a period of a budget, or what one turn has reserved.

    Attributes:
        name: The unit and the period, such as `tokens_2026_11_29`; for a reservation, the unit and the lease.
        amount: Tokens, or millionths of a dollar.
        cap: The limit in this unit when a turn last began or ended; NULL for a reservation.
        ends_at: The end of the period; NULL without a period and for a reservation.
        holder: For a reservation, the key of the session.
        token: For a reservation, the token of the session's lease.
        after_turn: For a reservation, the session's `last_turn_no` when it was made.
    """

    __tablename__ = "lango_budget"
    __table_args__ = (
        sa.PrimaryKeyConstraint("scope", "name", name="pk_lango_budget"),
        index_where_set("holder", "ix_lango_budget_holder", "holder"),
        stored("budget", name="budget {name!r}", since="0117"),
    )

    scope: str = key()
    name: str = key()
    amount: int = Field(sa_type=sa.BigInteger)
    cap: int | None = Field(default=None, sa_type=sa.BigInteger)
    ends_at: datetime | None = Field(default=None, sa_type=TimeColumn)
    holder: str | None = Field(default=None, sa_type=KEY_TEXT)
    token: int | None = Field(default=None, sa_type=sa.BigInteger)
    after_turn: int | None = Field(default=None, sa_type=sa.BigInteger)
    updated_at: datetime = Field(sa_type=TimeColumn)


BUDGET: Final = Base.metadata.tables["lango_budget"]
