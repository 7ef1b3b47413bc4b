"""Sessions of ADK, read from one snapshot of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from google.adk.events import Event

from lango_store import Message, SessionNotFound, Store
from lango_store.integrations.google_adk import state
from lango_store.integrations.google_adk.events import event_id, events, is_event, timestamp_of
from lango_store.integrations.google_adk.state import Place


class Found(NamedTuple):
    """A live session; `last_event` is the id of its last event, whether that is among `events` or not."""

    state: dict[str, Any]
    events: list[Event]
    last_update_time: float
    revision: int
    last_event: str | None


class Chosen(NamedTuple):
    """Which events to return: those since a time, and of these the last ones."""

    since: float | None = None
    last: int | None = None

    def of(self, key: str, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the chosen messages."""
        if self.since is not None:
            messages = [message for message in messages if timestamp_of(key, message) >= self.since]
        return messages if self.last is None else messages[max(len(messages) - self.last, 0) :]


ALL: Final = Chosen()


def find(view: Store, place: Place, chosen: Chosen = ALL) -> Found | None:
    """Read a live session, None if there is none."""
    conversation = view.conversation(place.key)
    try:
        info = conversation.info()
    except SessionNotFound:
        return None
    loaded = conversation.messages(last=None if chosen.last is None else max(chosen.last, 1), records=True)
    if chosen.since is not None or not all(map(is_event, loaded)):
        loaded = conversation.messages(records=True)
    shared = {scope: view.shared_values(scope) for scope in (place.app_scope, place.user_scope)}
    usages: dict[int | None, dict[str, Any]] = {}
    if info.turn_count:
        usages = {turn.turn_no: turn.usage for turn in conversation.turns() if turn.first_seq == turn.last_seq}
    messages = [message for message in loaded if is_event(message)]
    last = max(loaded, key=lambda message: message.seq, default=None)
    return Found(
        _state(place, view.values(place.key), shared),
        events(place.key, chosen.of(place.key, messages), usages),
        info.created_at.timestamp() if last is None else timestamp_of(place.key, last),
        info.revision,
        event_id(messages[-1]) if messages else None,
    )


def find_all(view: Store, app_name: str, user_id: str | None) -> list[tuple[Place, Found]]:
    """Read the live sessions of an app, or of a user in it, without events, ordered by their last update."""
    shared: dict[str, dict[str, Any]] = {}
    found: list[tuple[Place, Found]] = []
    for info in view.iter_sessions(key_prefix=state.key_prefix(app_name, user_id)):
        place = state.found_at(info.key)
        if place is None:
            continue
        for scope in (place.app_scope, place.user_scope):
            if scope not in shared:
                shared[scope] = view.shared_values(scope)
        last = view.conversation(info.key).all_messages(last=1)
        updated = timestamp_of(info.key, last[0]) if last else info.created_at.timestamp()
        found.append((place, Found(_state(place, view.values(info.key), shared), [], updated, info.revision, None)))
    return sorted(found, key=lambda each: (each[1].last_update_time, each[0].user_id, each[0].session_id))


def _state(place: Place, own: dict[str, Any], shared: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    values = {place.key: own, place.app_scope: shared[place.app_scope], place.user_scope: shared[place.user_scope]}
    return {
        state.unscoped(scope, name, place): value for scope, named in values.items() for name, value in named.items()
    }
