"""The methods of the room as coroutines."""

from lango_store._parts.twins import awaited
from lango_store._rooms.search import groups


class InStore:
    """Adds the members of the room to `AsyncStore`."""

    search = awaited(groups.InStore.search)


class InConversation:
    """Adds the members of the room to `AsyncConversation`."""

    search = awaited(groups.InConversation.search)
