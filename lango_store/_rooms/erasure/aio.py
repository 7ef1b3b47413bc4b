"""The methods of the room as coroutines."""

from lango_store._parts.twins import awaited
from lango_store._rooms.erasure import groups


class InStore:
    """Adds the members of the room to `AsyncStore`."""

    erase = awaited(groups.InStore.erase)
    export_user = awaited(groups.InStore.export_user)
