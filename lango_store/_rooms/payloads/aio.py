"""The methods of the room as coroutines."""

from lango_store._parts.twins import awaited
from lango_store._rooms.payloads import groups


class InMaintenance:
    """Adds the members of the room to `AsyncMaintenance`."""

    move_payloads = awaited(groups.InMaintenance.move_payloads)
