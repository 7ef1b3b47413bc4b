"""The methods of the room as coroutines."""

from lango_store._parts.twins import awaited
from lango_store._rooms.usage import groups


class InStore:
    """Adds the members of the room to `AsyncStore`."""

    usage = awaited(groups.InStore.usage)
