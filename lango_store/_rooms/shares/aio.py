"""The methods of the room as coroutines."""

from lango_store._parts.twins import AsyncPart, awaited, group
from lango_store._rooms.shares import groups
from lango_store._rooms.shares.groups import StoreShares


class AsyncStoreShares(AsyncPart[StoreShares]):
    """The methods of `StoreShares` as coroutines."""

    document = awaited(StoreShares.document)
    list = awaited(StoreShares.list)


class InStore:
    """Adds the members of the room to `AsyncStore`."""

    shares = group("shares", AsyncStoreShares)


class InConversation:
    """Adds the members of the room to `AsyncConversation`."""

    share = awaited(groups.InConversation.share)
    unshare = awaited(groups.InConversation.unshare)
    shares = awaited(groups.InConversation.shares)
