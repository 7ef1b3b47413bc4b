"""The list of all rooms, and what they add to the facades. A new room adds its lines here."""

from typing import ClassVar, Final

from lango_store._operations.log import changes
from lango_store._parts.groups import SessionPart, StoreFacade, StorePart
from lango_store._rooms.alternatives import aio as alternatives_aio
from lango_store._rooms.alternatives import branching
from lango_store._rooms.alternatives import checks as checks_of_alternatives
from lango_store._rooms.alternatives import groups as alternatives
from lango_store._rooms.alternatives import reading as branches
from lango_store._rooms.budgets import aio as budgets_aio
from lango_store._rooms.budgets import groups as budgets
from lango_store._rooms.distribution import checks as distribution
from lango_store._rooms.erasure import aio as erasure_aio
from lango_store._rooms.erasure import groups as erasure
from lango_store._rooms.examination import aio as examination_aio
from lango_store._rooms.examination import groups as examination
from lango_store._rooms.expiry import aio as expiry_aio
from lango_store._rooms.expiry import groups as expiry
from lango_store._rooms.forks import groups as forks
from lango_store._rooms.owners import aio as owners_aio
from lango_store._rooms.owners import groups as owners
from lango_store._rooms.payloads import aio as payloads_aio
from lango_store._rooms.payloads import groups as payloads
from lango_store._rooms.prompts import groups as prompts
from lango_store._rooms.search import aio as search_aio
from lango_store._rooms.search import groups as search
from lango_store._rooms.search import state as search_index
from lango_store._rooms.shares import aio as shares_aio
from lango_store._rooms.shares import groups as shares
from lango_store._rooms.stats import aio as stats_aio
from lango_store._rooms.stats import groups as stats
from lango_store._rooms.tail import aio as tail_aio
from lango_store._rooms.tail import groups as tail
from lango_store._rooms.tool_calls import aio as tool_calls_aio
from lango_store._rooms.tool_calls import groups as tool_calls
from lango_store._rooms.tool_calls import waiting
from lango_store._rooms.turns_in_progress import checks as checks_of_turns
from lango_store._rooms.turns_in_progress import pending
from lango_store._rooms.usage import aio as usage_aio
from lango_store._rooms.usage import groups as usage
from lango_store._rooms.versions import aio as versions_aio
from lango_store._rooms.versions import groups as versions
from lango_store._rooms.versions import kept_copies

ROOMS: Final = {
    "turns_in_progress": (),
    "tail": ("turns_in_progress",),
    "tool_calls": ("turns_in_progress",),
    "prompts": ("tool_calls",),
    "usage": (),
    "budgets": ("turns_in_progress", "usage"),
    "expiry": (),
    "versions": ("expiry",),
    "alternatives": ("tool_calls", "turns_in_progress", "versions"),
    "erasure": ("documents", "expiry", "turns_in_progress", "versions"),
    "forks": ("versions",),
    "stats": ("usage",),
    "examination": ("stats",),
    "search": (),
    "documents": ("alternatives", "tool_calls"),
    "shares": ("documents",),
    "payloads": (),
    "owners": (),
    "distribution": (),
}
"""The rooms, each with the rooms that it builds on; it imports no other room."""


changes.AFTER_REMOVALS.append(branching.drop_unreachable)


class RoomsOfStore(
    expiry.InStore,
    erasure.InStore,
    stats.InStore,
    tool_calls.InStore,
    usage.InStore,
    budgets.InStore,
    search.InStore,
    shares.InStore,
    owners.InStore,
    StoreFacade,
):
    """Members from the rooms for `Store`, except `turns_in_progress`, whose methods return the types of the facades."""

    _waiting: ClassVar = [pending.count, waiting.count, branches.count]
    _at_expiry: ClassVar = [kept_copies.purge]


class RoomsOfMaintenance(examination.InMaintenance, expiry.InMaintenance, payloads.InMaintenance, StorePart):
    """The members that the rooms add to `Maintenance`."""

    _at_expiry: ClassVar = [kept_copies.purge]
    _checks: ClassVar = [
        distribution.DISTRIBUTION,
        checks_of_turns.EMPTY_INBOX,
        checks_of_alternatives.LINKS,
        checks_of_alternatives.COUNTS,
        search_index.INDEX_CHECK,
    ]


class RoomsOfConversation(
    tool_calls.InConversation,
    forks.InConversation,
    search.InConversation,
    versions.InConversation,
    shares.InConversation,
    alternatives.InConversation,
    prompts.InConversation,
    tail.InConversation,
    SessionPart,
):
    """The members that the rooms add to `Conversation`, except `turns_in_progress`."""


class AsyncRoomsOfStore(
    expiry_aio.InStore,
    erasure_aio.InStore,
    stats_aio.InStore,
    tool_calls_aio.InStore,
    usage_aio.InStore,
    budgets_aio.InStore,
    search_aio.InStore,
    shares_aio.InStore,
    owners_aio.InStore,
):
    """The members that the rooms add to `AsyncStore`, except `turns_in_progress`."""


class AsyncRoomsOfMaintenance(examination_aio.InMaintenance, expiry_aio.InMaintenance, payloads_aio.InMaintenance):
    """The members that the rooms add to `AsyncMaintenance`."""


class AsyncRoomsOfConversation(
    search_aio.InConversation,
    shares_aio.InConversation,
    tail_aio.InConversation,
    tool_calls_aio.InConversation,
    versions_aio.InConversation,
    alternatives_aio.InConversation,
):
    """The members that the rooms add to `AsyncConversation`, except `turns_in_progress`."""
