"""The session service that ADK's runner, its command line and its web server call."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final, Literal

import sqlalchemy as sa
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse

from lango_store import AsyncStore, Conflict, SessionExists, SessionExpired, SessionNotFound, Store
from lango_store.integrations.adapter import Adapter
from lango_store.integrations.google_adk.events import Stored, state_json, stored
from lango_store.integrations.google_adk.reading import Chosen, Found, find, find_all
from lango_store.integrations.google_adk.state import Place, key_of, place_of, scoped, user_scope

try:
    from google.adk.errors._stale_session_error import StaleSessionError
except ImportError:  # its place is private

    class StaleSessionError(ValueError):  # type: ignore[no-redef]
        """Raised when a session was written to since it was read."""


__all__ = ["LangoSessionService", "StaleSessionError"]

_Outcome = Literal["written", "again", "another"]
"""Whether an event was written, or its id was stored already, as the id of this event or of another one."""

_SCHEME: Final = "lango+"
_MARKER: Final = "_storage_update_marker"
"""Where ADK's own services note the revision of a session that they read, if this release of it has that."""


class LangoSessionService(Adapter, BaseSessionService):
    """A session service for ADK: `Runner(…, session_service=LangoSessionService(store))`.

    Takes a `Store`, an `AsyncStore` or a URL, with `options` as `Store` takes them; or as `uri` what ADK's command line
    is given, `lango+postgresql://…` or `lango+sqlite:///…`. Any number of services may append to one session, and none
    is refused; with `check_stale` an append to a session that was written to since it was read is `StaleSessionError`,
    and writes nothing. `close()` closes what was made for a URL: a `Runner` does not call it.
    """

    def __init__(
        self,
        store: Store | AsyncStore | str | sa.URL | None = None,
        *,
        check_stale: bool = False,
        uri: str | None = None,
        agents_dir: str | None = None,  # what ADK gives to every service that it makes
        **options: Any,
    ) -> None:
        given = uri.removeprefix(_SCHEME) if store is None and uri is not None else store
        if given is None or (store is not None and uri is not None):
            raise TypeError("give a store or a uri, and only one of them: LangoSessionService(store)")
        super().__init__(given, **options)
        self._check_stale = check_stale

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create a session with its first state; a missing or blank id means a new UUID.

        `AlreadyExistsError` if a live session has the id.
        """
        id = (session_id or "").strip() or str(uuid.uuid4())
        place = place_of(app_name, user_id, id)
        found = await self._awaited.run_sync(_create, place, state_json(state or {}))
        return self._session(place, found)

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its state and the events that `config` asks for; None if no live session has the id."""
        place = place_of(app_name, user_id, session_id.strip())
        chosen = Chosen() if config is None else Chosen(config.after_timestamp, config.num_recent_events)
        found = await self._awaited.run_sync(_find, place, chosen)
        return None if found is None else self._session(place, found)

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """List the live sessions of an app, or of a user in it, without events, the one updated last at the end."""
        found = await self._awaited.run_sync(_find_all, app_name, user_id)
        return ListSessionsResponse(sessions=[self._session(place, each) for place, each in found])

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session, if there is one; what it shares with others stays."""
        await self._awaited.delete(place_of(app_name, user_id, session_id.strip()).key)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state that all sessions of a user in an app share, its keys without `user:`."""
        values = await self._awaited.shared_values(user_scope(app_name, user_id))
        return {key_of(name): value for name, value in values.items()}

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event to a live session and to the one in hand, with what it changes of the state; return it.

        A partial event is not stored, and the same event again only once. A session that has expired begins anew.
        `SessionNotFoundError` if there is none, and with `check_stale` `StaleSessionError` if another write came first.
        """
        if event.partial:
            return event
        place = place_of(session.app_name, session.user_id, session.id)
        new = stored(event)
        expected = await self._expected(session, place) if self._check_stale else None
        try:
            replayed, revision = await self._append(place, new, expected)
        except Conflict as conflict:
            raise StaleSessionError(f"{conflict.fact}: read the session again, and append to that") from conflict
        except SessionNotFound as error:
            raise SessionNotFoundError(f"session {session.id!r} of user {session.user_id!r} is not there") from error
        if replayed and any(each.id == event.id and new.is_the_same(each) for each in session.events):
            return event
        await super().append_event(session=session, event=event)
        session.last_update_time = event.timestamp
        self._mark(session, revision)
        return event

    async def _append(self, place: Place, new: Stored, expected: int | None) -> tuple[bool, int | None]:
        """Append an event; return whether it was there already, and the session's revision as far as it is known."""
        try:
            outcome, revision = await self._write(place, new, expect=expected)
        except SessionExpired:
            outcome, _ = await self._write(place, new, create=True, **place.fields)
            revision = None
        if outcome == "another":
            outcome, revision = await self._write(place, new.renamed(), expect=expected)
        return (False, revision) if outcome == "written" else (True, None)

    async def _write(self, place: Place, new: Stored, **terms: Any) -> tuple[_Outcome, int | None]:
        """Append an event and set what it changes of the state, together; return the revision if one was expected."""
        return await self._awaited.transact(lambda store: _write(store, place, new, terms))

    async def _expected(self, session: Session, place: Place) -> int | None:
        """Return the revision that a session in hand was read at; None if there is no such session any more."""
        marker = getattr(session, _MARKER, None)
        if isinstance(marker, str) and marker.isdecimal():
            return int(marker)
        found = await self._awaited.run_sync(_find, place, Chosen(last=0))
        if found is not None and found.last_event != (session.events[-1].id if session.events else None):
            raise StaleSessionError(f"session {session.id!r} was written to since: read it again, and append to that")
        return None if found is None else found.revision

    def _session(self, place: Place, found: Found) -> Session:
        session = Session(
            id=place.session_id,
            app_name=place.app_name,
            user_id=place.user_id,
            state=found.state,
            events=found.events,
            last_update_time=found.last_update_time,
        )
        self._mark(session, found.revision)
        return session

    def _mark(self, session: Session, revision: int | None) -> None:
        if self._check_stale and hasattr(session, _MARKER):
            setattr(session, _MARKER, None if revision is None else str(revision))


# In a thread of the store's


def _write(store: Store, place: Place, new: Stored, terms: dict[str, Any]) -> tuple[_Outcome, int | None]:
    conversation = store.conversation(place.key)
    if new.usage is None:
        message = conversation.append_message(new.message, **terms)
        written = not message.replayed
        same = message.turn_no is None and new.is_in(message, None)  # what cost something is in a turn
    else:
        turn = conversation.save_turn([new.message], new.usage, **terms)
        message = next(each for each in turn.messages if each.id == new.message.id)
        written = not turn.replayed and not message.replayed
        same = new.is_in(message, turn.usage)
    if not written:
        return "again" if same else "another", None
    has_own = _set_values(store, place, new.delta)
    expected = terms.get("expect")
    return "written", None if expected is None else expected + 1 + has_own


def _set_values(store: Store, place: Place, state: Mapping[str, Any]) -> bool:
    """Set what a state holds; return whether some of it is the session's own."""
    values = scoped(state, place)
    for scope in sorted(values):  # in one order, so that two writers never deadlock
        (store.set_values if scope == place.key else store.set_shared_values)(scope, values[scope])
    return place.key in values


def _create(store: Store, place: Place, state: dict[str, Any]) -> Found:
    def create(tx: Store) -> Found:
        try:
            session = tx.create(place.key, **place.fields)
        except SessionExists as error:
            if not error.expired:
                raise
            session = tx.get_or_create(place.key, renew=True, **place.fields)
        _set_values(tx, place, state)
        return find(tx, place) or Found(state, [], session.created_at.timestamp(), session.revision, None)

    try:
        return store.transact(create)
    except SessionExists as error:
        raise AlreadyExistsError(f"session {place.session_id!r} of user {place.user_id!r} exists already") from error


def _find(store: Store, place: Place, chosen: Chosen) -> Found | None:
    with store.snapshot() as view:
        return find(view, place, chosen)


def _find_all(store: Store, app_name: str, user_id: str | None) -> list[tuple[Place, Found]]:
    with store.snapshot() as view:
        return find_all(view, app_name, user_id)
