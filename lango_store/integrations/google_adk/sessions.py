"""Sessions of ADK, read from a store."""

from __future__ import annotations

from collections.abc import Sequence

from google.adk.events import Event
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig

from lango_store import Message, SessionInfo, Store
from lango_store.integrations.google_adk.events import event_of, is_event, timestamp_of
from lango_store.integrations.google_adk.state import Ids, keyed
from lango_store.integrations.keys import escaped


def find(store: Store, ids: Ids, config: GetSessionConfig) -> Session:
    """Read a live session with the events that `config` asks for; `SessionNotFound` if there is none."""
    last, since = config.num_recent_events, config.after_timestamp
    with store.snapshot() as view:
        conversation = view.conversation(ids.key)
        info = conversation.info()
        loaded = conversation.messages(last=None if last is None else max(last, 1), records=True)
        if since is not None or not all(map(is_event, loaded)):
            loaded = conversation.messages(records=True)
        messages = [message for message in loaded if is_event(message)]
        if since is not None:
            messages = [message for message in messages if timestamp_of(ids.key, message) >= since]
        if last is not None:
            messages = messages[max(len(messages) - last, 0) :]
        turns = conversation.turns() if info.turn_count else []
        usages = {turn.turn_no: turn.usage for turn in turns if turn.first_seq == turn.last_seq}
        events = [event_of(ids.key, message, usages.get(message.turn_no or 0)) for message in messages]
        return session_of(view, ids, info, loaded, events)


def find_all(store: Store, app_name: str, user_id: str | None) -> list[Session]:
    """Read the live sessions of an app, or of a user in it, without events, ordered by their last update."""
    prefix = "".join(f"{escaped(part)}:" for part in (app_name, user_id) if part is not None)
    sessions = []
    with store.snapshot() as view:
        for info in view.iter_sessions(key_prefix=prefix):
            if ids := Ids.of_key(info.key):
                last = view.conversation(info.key).all_messages(last=1)
                sessions.append(session_of(view, ids, info, last, []))
    return sorted(sessions, key=lambda session: (session.last_update_time, session.user_id, session.id))


def session_of(store: Store, ids: Ids, info: SessionInfo, messages: Sequence[Message], events: list[Event]) -> Session:
    """Return a session with its state and some events; its last message says when it was updated."""
    app_name, user_id, id = ids
    state = keyed(store.values(info.key))
    for prefix, scope in ids.scopes.items():
        state |= keyed(store.shared_values(scope), prefix)
    last = max(messages, key=lambda message: message.seq, default=None)
    updated = info.created_at.timestamp() if last is None else timestamp_of(info.key, last)
    return Session(id=id, app_name=app_name, user_id=user_id, state=state, events=events, last_update_time=updated)
