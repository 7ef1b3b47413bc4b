"""The exceptions of this package. A message says what to do next where the fact alone does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

MAX_QUOTED: Final = 200


def quoted(value: object) -> str:
    """Write an argument as `repr` does, and at most 200 characters of it."""
    if isinstance(value, str | bytes):
        value = value[:MAX_QUOTED]  # nothing larger is copied
    try:
        text = repr(value)
    except Exception:  # nested too deeply, or a number of too many digits
        text = type(value).__name__
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…"


class LangoStoreError(Exception):
    """The base class of all errors of this package."""

    driver_error: BaseException | None = None
    """The driver's error, if it was one. It is not chained, as its text may quote what is stored."""

    @property
    def fact(self) -> str:
        """The message without the advice."""
        return str(self.__dict__.get("_fact", self))

    def __reduce__(self) -> tuple[Any, ...]:  # constructors differ, so that pickle must not call them
        state = {name: value for name, value in self.__dict__.items() if name != "driver_error"}
        return _restored, (type(self), self.args, state)


def _restored(kind: type[LangoStoreError], args: tuple[Any, ...], state: dict[str, Any]) -> LangoStoreError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class SessionNotFound(LangoStoreError, LookupError):
    """No live session has this key."""

    def __init__(self, key: str, message: str | None = None) -> None:
        self._fact = message or f"no session {quoted(key)}"
        super().__init__(message or f"{self._fact}: create it first, or use get_or_create")
        self.key = key


class SessionExpired(SessionNotFound):
    """The session is there, but past its TTL; until it is purged, `touch` revives it."""

    def __init__(self, key: str, expires_at: object) -> None:
        fact = f"session {quoted(key)} expired at {expires_at}"
        super().__init__(key, f"{fact}: touch it to revive it, or replace it with renew=True")
        self._fact = fact
        self.expires_at = expires_at


class MessageNotFound(LangoStoreError, LookupError):
    """The session has no message with this `seq` or id; nothing was changed."""

    def __init__(self, key: str, seq_or_id: int | str) -> None:
        name = "id" if isinstance(seq_or_id, str) else "seq"
        self._fact = f"session {quoted(key)} has no message with {name} {quoted(seq_or_id)}"
        super().__init__(f"{self._fact}: conversation({quoted(key)}).all_messages() returns those that it has")
        self.key = key
        self.seq_or_id = seq_or_id


class SessionExists(LangoStoreError):
    """A session with this key exists already; nothing was changed."""

    def __init__(self, key: str, *, expired: bool = False) -> None:
        remedy = (
            "and has expired: get_or_create(renew=True) replaces it, touch revives it"
            if expired
            else "already: use get_or_create, or another key"
        )
        super().__init__(f"session {quoted(key)} exists {remedy}")
        self._fact = f"session {quoted(key)} exists {'and has expired' if expired else 'already'}"
        self.key = key
        self.expired = expired


class SessionHeld(LangoStoreError):
    """A row of another table refers to a session that should go, by a foreign key without ON DELETE.

    Nothing was changed for that session. `constraint` names the foreign key and its table; SQLite does not tell them.
    """

    def __init__(self, key: str | None, constraint: str) -> None:
        what = "a session" if key is None else f"session {quoted(key)}"
        super().__init__(
            f"{what} is held by {constraint}: delete the row that refers to it first, "
            "or give the foreign key ON DELETE SET NULL or CASCADE"
        )
        self.key = key
        self.constraint = constraint


class Conflict(LangoStoreError):
    """Another writer changed the session first; nothing was changed.

    `last_seq` is the current one of the session, and `revision` too, if a revision was expected.
    """

    def __init__(
        self, key: str, *, expected: int, last_seq: int, revision: int | None = None, message: str | None = None
    ) -> None:
        super().__init__(
            message
            or (
                f"session {quoted(key)} is at revision {revision}, not at {expected}: "
                f"read what was changed, then write with expect={revision}"
                if revision is not None
                else f"session {quoted(key)} is at seq {last_seq}, not at {expected}: "
                f"read what came in, then append after={last_seq}"
            )
        )
        self.key = key
        self.expected = expected
        self.last_seq = last_seq
        self.revision = revision


class UniqueViolation(LangoStoreError):
    """A unique value, such as an id, is stored already; nothing was written."""


class InvalidKey(LangoStoreError, ValueError):
    """A session key, a scope or a name is not text of 1 to 512 characters without NUL or lone surrogates."""


class InvalidValue(LangoStoreError, ValueError):
    """A field of a session, a value or a turn cannot be stored without loss; nothing was written.

    `field` names it, and the text the place in it.
    """

    def __init__(self, field: str, reason: str, *, place: str = "") -> None:
        super().__init__(f"{field}{place}: {reason}")
        self.field = field


class InvalidMessage(InvalidValue):
    """A message cannot be stored without loss; nothing was written. `field` names its field."""

    @classmethod
    def of(cls, error: InvalidValue) -> InvalidMessage:
        """Return the error of a field as one of its message."""
        made = cls.__new__(cls, *error.args)
        made.args, made.field = error.args, error.field
        return made


class InvalidCut(LangoStoreError, ValueError):
    """A cut or a fork at this `seq` is never possible: the messages before it were discarded by a compaction.

    Nothing was changed. `seq` is where the cut was asked for, `first` the lowest one that keeps the summary.
    """

    def __init__(self, key: str, seq: int, first: int) -> None:
        super().__init__(
            f"session {quoted(key)} has a summary in the place of its messages up to seq {first}, which were "
            f"discarded: nothing is left at seq {seq}; give {first} or more to keep the summary, "
            "or 0 for an empty session"
        )
        self.key = key
        self.seq = seq
        self.first = first


class InvalidFile(LangoStoreError, ValueError):
    """A file cannot be read as what it should be, or not be written; `path` names it. Nothing was changed."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = str(path)


class InvalidCursor(LangoStoreError, ValueError):
    """A cursor was not made by `list_sessions`."""


class DamagedMessage(LangoStoreError):
    """A stored message cannot be read; the messages before and after it can, with `before=` and `after=`.

    `seq` is 0 where a field of the session itself cannot be read.
    """

    def __init__(self, key: str, seq: int, field: str, reason: str) -> None:
        what = f"message {seq} of session {quoted(key)}" if seq else f"session {quoted(key)}"
        self._fact = f"{what} cannot be read, {field}: {reason}"
        others = (
            f"the others can: conversation({quoted(key)}).all_messages(damaged='return')"
            if seq
            else f"its messages can: conversation({quoted(key)}).all_messages()"
        )
        super().__init__(f"{self._fact}; {others}")
        self.key = key
        self.seq = seq
        self.field = field
        self.reason = reason


class SchemaOutOfDate(LangoStoreError):
    """The database lacks the tables of this release; `found` and `needed` are revisions, `remedy` says what to do.

    `schema` is where they were looked for: on PostgreSQL the first schema of the search path, on SQLite None.
    """

    def __init__(self, found: str | None, needed: str, schema: str | None = None, *, remedy: str | None = None) -> None:
        state = "has no lango_store tables" if found is None else f"is at revision {found}"
        where = "the database" if schema is None else f"schema {quoted(schema)} of the database"
        self._fact = f"{where} {state}, this release needs revision {needed}"
        self.remedy = remedy or "run `lango-store db upgrade`"
        or_in_python = "" if remedy else ", or open the store with Store(..., migrate=True)"
        super().__init__(f"{self._fact}: {self.remedy}{or_in_python}")
        self.found = found
        self.needed = needed
        self.schema = schema


class UnknownFeature(LangoStoreError):
    """The database uses features that this release does not know; nothing was read or written.

    `features` are their names. Only a newer release may use the database.
    """

    def __init__(self, features: Sequence[str]) -> None:
        super().__init__(
            f"the database uses {', '.join(features)}, which this release does not know: upgrade lango-store"
        )
        self.features = tuple(features)


class SearchUnavailable(LangoStoreError):
    """The store cannot be searched: it has no search index, or one that is incomplete or damaged."""


class DatabaseUnavailable(LangoStoreError):
    """The database cannot be reached, opened, read or written."""


class NotPermitted(DatabaseUnavailable):
    """The role of the URL may not do that, or a policy for rows forbids it; nothing was written."""


class DatabaseBusy(LangoStoreError):
    """Another transaction held a lock for too long, or aborted this one; a retry may succeed."""
