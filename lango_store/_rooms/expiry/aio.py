"""The methods of the room as coroutines."""

from lango_store._parts.twins import awaited
from lango_store._rooms.expiry import groups


class InStore:
    """Adds the members of the room to `AsyncStore`."""

    expire = awaited(groups.InStore.expire)
    delete_where = awaited(groups.InStore.delete_where)
    restore = awaited(groups.InStore.restore)
    hide = awaited(groups.InStore.hide)


class InMaintenance:
    """Adds the members of the room to `AsyncMaintenance`."""

    apply_policy = awaited(groups.InMaintenance.apply_policy)
