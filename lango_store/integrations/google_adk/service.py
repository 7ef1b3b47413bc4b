"""`LangoSessionService`, for the runner, the command line and the web server of ADK."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from google.adk.sessions import BaseSessionService, Session, State
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse

from lango_store import (
    AsyncStore,
    Conflict,
    Conversation,
    InvalidMessage,
    Message,
    SessionExists,
    SessionExpired,
    SessionInfo,
    SessionNotFound,
    Store,
)
from lango_store.integrations.adapter import Adapter
from lango_store.integrations.fields import escaped, joined_key, same_json, split_key, turn_metadata
from lango_store.integrations.google_adk.events import (
    NewEvent,
    changed_by_rewinds,
    event_json,
    event_of,
    is_event,
    keyed,
    new_event,
    state_delta,
    state_json,
    values_by_prefix,
)
from lango_store.rows import mapping, storable_text

try:
    from google.adk.errors._stale_session_error import StaleSessionError
except ImportError:  # the module is private

    class StaleSessionError(ValueError):  # type: ignore[no-redef]
        """The session was changed in the store after it was read."""


__all__ = ["LangoSessionService", "StaleSessionError"]

_SHARED: Final = "google_adk/"
_AT_ONCE: Final = 1_000
"""The number of sessions that a list reads with each statement."""


class Ids(NamedTuple):
    """The three ids that identify a session of ADK."""

    app_name: str
    user_id: str
    session_id: str

    @classmethod
    def of_key(cls, key: str) -> Ids | None:
        """Return the ids in a session key, None if it is not the key of a session of ADK."""
        parts = split_key(key)
        return cls(*parts) if len(parts) == 3 and key == ":".join(map(escaped, parts)) else None

    @property
    def key(self) -> str:
        """The key of this ADK session in the store."""
        return joined_key(*self)

    @property
    def fields(self) -> dict[str, Any]:
        """The `agent_id` and `user_id` of the session in the store; None for an id that cannot be stored."""
        return {"agent_id": storable_text(self.app_name), "user_id": storable_text(self.user_id)}

    @property
    def scopes(self) -> dict[str, str]:
        """The scopes of shared values, by the prefix that their keys have in a session's state."""
        return {
            State.APP_PREFIX: joined_key(self.app_name, prefix=_SHARED),
            State.USER_PREFIX: joined_key(self.app_name, self.user_id, prefix=_SHARED),
        }


class LangoSessionService(Adapter, BaseSessionService):
    """A session service for Google ADK.

    Pass it to ADK as `Runner(…, session_service=LangoSessionService(store))`.

    Any number of services, in any number of processes, may append to one session. A `Runner` does not close its
    service: call `close()`, or use the service as an asynchronous context manager.

    Args:
        store: A `Store`, an `AsyncStore`, or the URL of a database; URLs for asyncpg and aiosqlite are accepted too.
        check_stale: Reject an append to a session object that is outdated: if the last event has changed since the
            session was read, `append_event` raises `StaleSessionError` and writes nothing. Default: False.
        uri: The URI of ADK's command line, `lango+postgresql://…` or `lango+sqlite:///…`, instead of a store.
        agents_dir: Not used. ADK passes it to every service.
        **options: Options of `Store`; only with a URL or a URI.

    Raises:
        TypeError: Both or neither of `store` and `uri` are given, or `options` are given with a store.
        ValueError: The database of the URL is not supported, or an option is invalid.
    """

    def __init__(
        self,
        store: Store | AsyncStore | str | sa.URL | None = None,
        *,
        check_stale: bool = False,
        uri: str | None = None,
        agents_dir: str | None = None,  # passed by ADK to every service
        **options: Any,
    ) -> None:
        source = store if uri is None else uri.removeprefix("lango+")
        if source is None or (store is not None and uri is not None):
            raise TypeError("give either a store or a uri: LangoSessionService(store)")
        super().__init__(source, **options)
        self._check_stale = check_stale

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Create a session. An expired session with the id is replaced.

        Args:
            app_name: The name of the app.
            user_id: The id of the user.
            state: The first state. Keys with the prefixes `app:` and `user:` set shared state; `temp:` is not stored.
            session_id: The id of the session; by default a new UUID.

        Returns:
            The session with its state, including the state of the app and the user.

        Raises:
            AlreadyExistsError: A live session with the id exists.
        """
        ids = Ids(app_name, user_id, (session_id or "").strip() or str(uuid.uuid4()))
        first = state_json(state or {})
        try:
            return await self._awaited.transact(lambda tx: _create(tx, ids, first))
        except SessionExists as error:
            raise AlreadyExistsError(f"session {ids.session_id!r} of user {user_id!r} exists already") from error

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its state and events.

        Args:
            app_name: The name of the app.
            user_id: The id of the user.
            session_id: The id of the session.
            config: Limits the events to the last `num_recent_events`, to those since `after_timestamp`, or to both. By
                default, all events of the window are returned.

        Returns:
            The session, None if no live session has the id.

        Raises:
            DamagedMessage: An event cannot be read.
        """
        ids = Ids(app_name, user_id, session_id.strip())
        try:
            return await self._awaited.run_sync(_find, ids, config or GetSessionConfig())
        except SessionNotFound:
            return None

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """List the live sessions of an app, without their events.

        Args:
            app_name: The name of the app.
            user_id: List only the sessions of this user.

        Returns:
            The sessions with their state, the most recently updated session last.
        """
        return ListSessionsResponse(sessions=await self._awaited.run_sync(_find_all, app_name, user_id))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session, if it exists. The state of the app and the user is kept.

        Args:
            app_name: The name of the app.
            user_id: The id of the user.
            session_id: The id of the session.
        """
        await self._awaited.delete(Ids(app_name, user_id, session_id.strip()).key)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state that all sessions of a user in an app share.

        Args:
            app_name: The name of the app.
            user_id: The id of the user.

        Returns:
            The state. Its keys do not have the prefix `user:`.
        """
        return keyed(await self._awaited.shared_values(Ids(app_name, user_id, "").scopes[State.USER_PREFIX]).get())

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event to a session, and apply its state changes.

        The session object is updated too. A partial event is not stored. An event that is already stored, with equal
        content, is not stored again. A session that has expired but is not deleted yet is replaced by a session with
        the same id that has only this event and its state changes.

        Args:
            session: A session that this service returned.
            event: The event.

        Returns:
            The event.

        Raises:
            SessionNotFoundError: The session does not exist.
            StaleSessionError: With `check_stale`: the last stored event is not the one that was read, or another writer
                changed the session during this call. Nothing was written.
            InvalidMessage: The event cannot be written as JSON, or a different event has its id. Nothing was written.
        """
        if event.partial:
            return event
        ids = Ids(session.app_name, session.user_id, session.id)
        unchanged = session if self._check_stale else None
        new = new_event(event)
        try:
            replayed = await self._awaited.transact(lambda tx: _append(tx, ids, new, unchanged))
        except Conflict as conflict:
            raise StaleSessionError(
                f"{conflict.fact}: read the session again, then append to the new object"
            ) from conflict
        except SessionNotFound as error:
            raise SessionNotFoundError(f"session {session.id!r} of user {session.user_id!r} does not exist") from error
        if replayed and any(same_json(event_json(each), new.json) for each in session.events if each.id == event.id):
            return event
        await super().append_event(session=session, event=event)
        session.last_update_time = event.timestamp
        return event


# These functions run in a thread of the store.


def _find(store: Store, ids: Ids, config: GetSessionConfig) -> Session:
    """Read a live session with the events that `config` selects."""
    last, since = config.num_recent_events, config.after_timestamp
    with store.snapshot() as view:
        conversation = view.conversation(ids.key)
        info = conversation.info()
        loaded = conversation.messages(last=None if last is None else max(last, 1), records=True)
        if since is not None or not all(map(is_event, loaded)):
            loaded = conversation.messages(records=True)
        events = _events(conversation, info, list(filter(is_event, loaded)))
        events = [event for event in events if since is None or event.timestamp >= since]
        if last is not None:
            events = events[max(len(events) - last, 0) :]
        return _session_of(view, ids, info, loaded, events)


def _events(conversation: Conversation, info: SessionInfo, messages: Sequence[Message]) -> list[Event]:
    """Return messages as events, with the usage of the turns that have one message."""
    turns = conversation.turns.list() if info.turn_count else []
    usages = {turn.turn_no: turn.usage for turn in turns if turn.first_seq == turn.last_seq}
    return [event_of(conversation.key, each, usages.get(each.turn_no or 0)) for each in messages]


def _find_all(store: Store, app_name: str, user_id: str | None) -> list[Session]:
    """Read the live sessions of an app, optionally of one user, without events, in the order of their last update."""
    prefix = "".join(f"{escaped(part)}:" for part in (app_name, user_id) if part is not None)
    sessions: list[Session] = []
    with store.snapshot() as view:
        infos = view.iter_sessions(key_prefix=prefix, page_size=_AT_ONCE)
        listed = ((info, ids) for info in infos if (ids := Ids.of_key(info.key)))
        while page := list(islice(listed, _AT_ONCE)):
            keys = [info.key for info, _ in page]
            values, last = view.values_of(keys), view.messages_of(keys, last=1)
            shared = view.shared_values_of([scope for _, ids in page for scope in ids.scopes.values()])
            sessions += [
                _with_state(ids, info, values[info.key], shared, last[info.key], [])
                for info, ids in page
                if info.key in values and info.key in last  # it may expire during the call
            ]
    return sorted(sessions, key=lambda session: (session.last_update_time, session.user_id, session.id))


def _session_of(store: Store, ids: Ids, info: SessionInfo, messages: Sequence[Message], events: list[Event]) -> Session:
    values = store.conversation(info.key).values.get()
    return _with_state(ids, info, values, store.shared_values_of([*ids.scopes.values()]), messages, events)


def _with_state(
    ids: Ids,
    info: SessionInfo,
    values: dict[str, Any],
    shared: Mapping[str, dict[str, Any]],
    messages: Sequence[Message],
    events: list[Event],
) -> Session:
    """Return a session with its state and these events. Its update time is the time of the last of `messages`.

    `shared` holds the shared values of the app and the user, by their scopes.
    """
    app_name, user_id, id = ids
    state = keyed(values)
    for prefix, scope in ids.scopes.items():
        state |= keyed(shared[scope], prefix)
    last = max(messages, key=lambda message: message.seq, default=None)
    updated = info.created_at.timestamp() if last is None else event_of(info.key, last, None).timestamp
    return Session(id=id, app_name=app_name, user_id=user_id, state=state, events=events, last_update_time=updated)


def _create(tx: Store, ids: Ids, state: dict[str, Any]) -> Session:
    try:
        tx.create(ids.key, **ids.fields)
    except SessionExists as error:
        if not error.expired:
            raise
        tx.open(ids.key, renew=True, **ids.fields)
    _set_values(tx, ids, state)
    return _session_of(tx, ids, tx.conversation(ids.key).info(expired=True), [], [])


def _append(tx: Store, ids: Ids, new: NewEvent, unchanged: Session | None) -> bool:
    """Append an event and apply its state changes; return True if the event was already stored.

    Raises `StaleSessionError` if the session in the store is newer than `unchanged`.
    """
    conversation = tx.conversation(ids.key)
    try:
        expected = None if unchanged is None else _checked_revision(tx, ids, new, unchanged)
        replayed = _put(conversation, new, expect=expected)
    except SessionExpired:
        create = False  # if the session was deleted or renewed after it was found to be expired
        revision = tx.conversation(ids.key).info(expired=True).revision
        with suppress(Conflict):
            create = not tx.exists(ids.key) and tx.delete(ids.key, expect=revision)
        replayed = _put(conversation, new, **({"create": True} | ids.fields if create else {}))
    if not replayed:
        _set_values(tx, ids, state_delta(new.json))
        if mapping(new.json.get("actions")).get("rewind_before_invocation_id"):
            rewind(conversation)
    return replayed


def rewind(conversation: Conversation) -> None:
    """Turn the messages that ADK no longer sees into records, so that the store does not present them either."""
    messages = [each for each in conversation.messages(records=True) if is_event(each)]
    events = _events(conversation, conversation.info(), messages)
    conversation.edits.update_all([*changed_by_rewinds(messages, events)])


def _checked_revision(tx: Store, ids: Ids, new: NewEvent, session: Session) -> int:
    """Return the revision of the stored session; raise `StaleSessionError` for a new event if `session` is stale."""
    conversation = tx.conversation(ids.key)
    revision = conversation.info().revision  # read first: a write that is committed after this is a Conflict
    stored = _find(tx, ids, GetSessionConfig(num_recent_events=1))
    last_stored, last = ([event.id for event in each.events[-1:]] for each in (stored, session))
    is_stale = stored.last_update_time != session.last_update_time or (last and last != last_stored)
    if is_stale and conversation.find_message(str(new.message.id)) is None:
        raise StaleSessionError(
            f"session {session.id!r} has newer events: read the session again, then append to the new object"
        )
    return revision


def _put(conversation: Conversation, new: NewEvent, **options: Any) -> bool:
    """Append an event; return True if it was already stored. Raises `InvalidMessage` if its id is another event's."""
    if new.usage is None:
        message = conversation.append_message(new.message, **options)
        replayed = message.replayed
        equal = message.turn_no is None and new.equals(message, None)  # an event with usage is in a turn
    else:
        metadata = turn_metadata([new.json.get("model_version")])
        turn = conversation.save_turn([new.message], new.usage, metadata=metadata, **options)
        message = next(each for each in turn.messages if each.id == new.message.id)
        replayed = turn.replayed or message.replayed
        equal = message.turn_no == turn.turn_no and new.equals(message, turn.usage)
    if replayed and not equal:
        raise InvalidMessage("event.id", "is the id of another event in the session")
    return replayed


def _set_values(tx: Store, ids: Ids, state: Mapping[str, Any]) -> None:
    values = values_by_prefix(state)
    for prefix in sorted(values):  # a fixed order, so that two writers cannot deadlock
        if prefix:
            tx.shared_values(ids.scopes[prefix]).set(values[prefix])
        else:
            tx.conversation(ids.key).values.set(values[prefix])
