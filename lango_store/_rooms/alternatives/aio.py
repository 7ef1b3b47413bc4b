"""The methods of the room as coroutines."""

from lango_store._parts.twins import awaited
from lango_store._rooms.alternatives import groups


class InConversation:
    """Adds the members of the room to `AsyncConversation`."""

    alternatives = awaited(groups.InConversation.alternatives)
    switch = awaited(groups.InConversation.switch)
    drop_alternative = awaited(groups.InConversation.drop_alternative)
