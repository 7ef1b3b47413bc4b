"""The methods of the room."""

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo

from lango_store._connections.context import Context
from lango_store._operations.session.lists import Filter
from lango_store._rooms.usage import report
from lango_store._rooms.usage.report import Prices
from lango_store._rooms.usage.values import UsageRow


class InStore:
    """Adds the members of the room to `Store`."""

    _context: Context

    def usage(
        self,
        by: Sequence[str] = (),
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        user_id: str | None = None,
        agent_id: str | None = None,
        key_prefix: str | None = None,
        top_level: bool = False,
        prices: Prices | None = None,
        timezone: tzinfo = UTC,
    ) -> list[UsageRow]:
        """Add up the usage of turns, for all sessions or by groups.

        Turns that a fork copied count only in the original session. Turns of expired sessions that are not purged yet
        count too.

        Args:
            by: The fields to group by: any of "key", "root" (the topmost parent), "user_id", "agent_id", "model",
                "day" and "month". Defaults to none: one row for all turns.
            since: Only turns that were saved at or after this time, an aware datetime.
            until: Only turns that were saved before this time, an aware datetime.
            user_id: Only sessions of this user.
            agent_id: Only sessions of this agent.
            key_prefix: Only sessions whose key starts with this text.
            top_level: Leave out child sessions. False by default.
            prices: The prices of usage without a stored cost: for each model, the usage fields with their prices in
                dollars per million units, such as
                `{"gpt-x": {"input_tokens": 2.0, "input_tokens_details.cached_tokens": -1.0}}`. The negative price is a
                discount on cached tokens, which `input_tokens` includes. Defaults to none.
            timezone: The time zone in which days and months begin, such as `ZoneInfo("Europe/Oslo")`. Defaults to UTC.

        Returns:
            One row for each group, sorted by the fields in `by`.

        Raises:
            ValueError: `by` has an unknown name, or a time has no time zone.
            DamagedDatabase: The usage of a turn is damaged, or a number is too large to add.
        """
        chosen = Filter(user_id=user_id, agent_id=agent_id, key_prefix=key_prefix, top_level=top_level, expired=None)
        return self._context.read_together(report.report, chosen, by, since, until, prices, timezone)
