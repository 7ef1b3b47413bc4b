"""The exceptions of lango_store.

All exceptions are subclasses of `LangoStoreError`. The text of an exception says what happened and, where that is not
obvious, what to do next. It quotes no stored content, and at most 200 characters of an argument.

A method that raises one of these exceptions has rolled back its transaction, except in four cases:

- A method that works in batches, such as `expire`, has committed the earlier batches.
- On PostgreSQL, `update` and `touch` have stored their change if they raise `DamagedMessage` for a field that they do
  not change.
- If a write raises `DatabaseUnavailable` because the connection was lost, it may have been committed.
- In your own transaction (`store.using(connection)`), you decide between commit and rollback.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

MAX_QUOTED: Final = 200


def quoted(value: object) -> str:
    """Return the `repr` of an argument for an error text, cut off after 200 characters."""
    if isinstance(value, str | bytes):
        value = value[:MAX_QUOTED]  # before repr, so that a large text is not copied
    try:
        text = repr(value)
    except Exception:  # nested too deeply, or an integer with too many digits
        text = type(value).__name__
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…"


class LangoStoreError(Exception):
    """The base class of all exceptions of lango_store.

    Failures without a more specific class are raised as `LangoStoreError` itself. The text says what to do.

    Attributes:
        fact: The text of the exception without the advice.
        driver_error: The exception of the database driver, or None if the driver raised none. It is not chained as
            `__cause__`, because its text may quote stored rows. Consider this before you log the driver's exception.
    """

    driver_error: BaseException | None = None

    @property
    def fact(self) -> str:
        """The text of the exception without the advice."""
        return str(self.__dict__.get("_fact", self))

    def __reduce__(self) -> tuple[Any, ...]:  # pickle must not call the constructors: their arguments differ
        state = {name: value for name, value in self.__dict__.items() if name != "driver_error"}
        return _restored, (type(self), self.args, state)


def _restored(kind: type[LangoStoreError], args: tuple[Any, ...], state: dict[str, Any]) -> LangoStoreError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class NotFound(LangoStoreError, LookupError):
    """The session, message, payload, draft, tool call, suspension or share does not exist; nothing was written."""


class SessionNotFound(NotFound):
    """No live session has this key.

    Nothing was written. Create the session first, or use `open`. A method that needs a live session raises the
    subclass `SessionExpired` for a session whose TTL has passed.

    Attributes:
        key: The key of the session.
    """

    def __init__(self, key: str, message: str | None = None) -> None:
        self._fact = message or f"no session {quoted(key)}"
        super().__init__(message or f"{self._fact}: create it first, or use open()")
        self.key = key


class SessionExpired(SessionNotFound):
    """The TTL of the session has passed; nothing was written.

    The session and its messages stay in the database until they are purged. Until then `touch` makes the session live
    again, and `open(renew=True)` replaces the session with a new one.

    Attributes:
        key: The key of the session.
        expires_at: The time at which the session expired.
    """

    def __init__(self, key: str, expires_at: object) -> None:
        fact = f"session {quoted(key)} expired at {expires_at}"
        super().__init__(key, f"{fact}: touch it to revive it or, without a hold, replace it with renew=True")
        self._fact = fact
        self.expires_at = expires_at


class MessageNotFound(NotFound):
    """The session has no message with this `seq` or id; nothing was written.

    `Conversation.all_messages()` returns the messages of the session.

    Attributes:
        key: The key of the session.
        seq_or_id: The `seq` (an int) or the id (a str) that was passed.
    """

    def __init__(self, key: str, seq_or_id: int | str) -> None:
        name = "id" if isinstance(seq_or_id, str) else "seq"
        self._fact = f"session {quoted(key)} has no message with {name} {quoted(seq_or_id)}"
        super().__init__(f"{self._fact}: conversation({quoted(key)}).all_messages() returns its messages")
        self.key = key
        self.seq_or_id = seq_or_id


class PayloadNotFound(NotFound):
    """The session has no payload with this digest.

    The message that referred to the payload was edited or removed, or the digest is from another session.

    Attributes:
        key: The key of the session.
        digest: The digest that was passed.
    """

    def __init__(self, key: str, digest: str) -> None:
        self._fact = f"session {quoted(key)} has no payload {quoted(digest)}"
        super().__init__(f"{self._fact}: read the message again")
        self.key = key
        self.digest = digest


class SessionExists(LangoStoreError):
    """A new session cannot be stored, because a session already has its key.

    Nothing was written. Use `open`, or another key. If the existing session has expired,
    `open(renew=True)` replaces the session, and `touch` makes it live again.

    Attributes:
        key: The key of the session.
        expired: True if the existing session has expired.
    """

    def __init__(self, key: str, *, expired: bool = False) -> None:
        remedy = (
            "and has expired: open(renew=True) replaces it, touch revives it"
            if expired
            else "already: use open(), or another key"
        )
        super().__init__(f"session {quoted(key)} exists {remedy}")
        self._fact = f"session {quoted(key)} exists {'and has expired' if expired else 'already'}"
        self.key = key
        self.expired = expired


HOLD: Final = "hold: "
"""The beginning of the `constraint` of a `SessionOnHold`."""


class SessionHeld(LangoStoreError):
    """A session cannot be deleted, because a row of another table refers to it.

    The session was not changed. The foreign key has neither ON DELETE SET NULL nor ON DELETE CASCADE. Delete the row
    first, or alter the foreign key. `delete_where` deletes the other sessions, and then raises this exception. `expire`
    lists such sessions in `held` of its report, and raises this exception only if there are more than 10,000.

    Attributes:
        key: The key of the session, or None if it is not known.
        constraint: The foreign key and its table. On SQLite only the driver's text, which names neither.
    """

    def __init__(self, key: str | None, constraint: str, *, number: int = 1) -> None:
        subject = f"{number:,} sessions are" if number > 1 else f"session {quoted(key)} is" if key else "a session is"
        super().__init__(
            f"{subject} held by {constraint}: delete the row that refers to it first, "
            "or give the foreign key ON DELETE SET NULL or CASCADE"
        )
        self.key = key
        self.constraint = constraint


class SessionOnHold(SessionHeld):
    """A session cannot be deleted, because `update(hold=…)` protects it. Release it with `update(hold=None)` first.

    Attributes:
        hold: The reason of the hold.
        constraint: The same reason, after "hold: ".
    """

    def __init__(self, key: str, hold: str) -> None:
        super().__init__(key, f"{HOLD}{hold}")
        self.args = (f"session {quoted(key)} is on hold ({quoted(hold)}): release it first, with update(hold=None)",)
        self.hold = hold


class Conflict(LangoStoreError):
    """Another writer changed the session first; nothing was written.

    Raised in these cases:

    - `after=` is not the session's `last_seq`, or `expect=` is not its `revision`. Read the session again, decide
      whether the write is still right, and repeat it with the current number.
    - Messages were changed or removed, or the session was replaced, since the `SessionInfo` of `intact_since=`.
    - While `compact` ran the summarizer, the session was compacted, or messages were edited or removed.
    - The result of a tool call cannot be stored, because the call was resolved or begun again, or its message removed.
    - `undo` or `redo` would restore a message or a turn whose id was used again.
    - A turn has lost its lease: the subclass `LeaseLost`.

    Attributes:
        key: The key of the session.
        expected: The number that was passed as `after=` or `expect=`. It has no meaning in the other cases.
        last_seq: The current `last_seq` of the session; 0 if it does not exist.
        revision: The current `revision` of the session; None unless `expect=` was passed.
    """

    def __init__(
        self, key: str, *, expected: int, last_seq: int, revision: int | None = None, message: str | None = None
    ) -> None:
        super().__init__(
            message
            or (
                f"session {quoted(key)} is at revision {revision}, not at {expected}: "
                f"read the session again, then write with expect={revision}"
                if revision is not None
                else f"session {quoted(key)} is at seq {last_seq}, not at {expected}: "
                f"read the new messages, then append with after={last_seq}"
            )
        )
        self.key = key
        self.expected = expected
        self.last_seq = last_seq
        self.revision = revision


class DatabaseError(LangoStoreError):
    """The database or its driver reported an error, or the database cannot be reached.

    Raised as a subclass if the cause is known: `DatabaseUnavailable`, `DatabaseBusy`, `NotPermitted` or
    `UniqueViolation`. The text has the message of the database without the parts that may quote stored rows.
    """


class UniqueViolation(DatabaseError):
    """The database refused a row, because a unique value of the row is already stored.

    Nothing was written. The store itself handles keys and ids that are already stored. This exception appears when
    another program writes to the tables, or when a table has additional unique indexes. The text names the index or the
    columns.
    """


class InvalidKey(LangoStoreError, ValueError):
    """A session key, a scope or a name cannot be stored; nothing was written.

    Each of them is text of 1 to 512 characters without NUL and without lone surrogates. The name of a value and its
    session key or scope have at most 2,600 bytes together in UTF-8. The name of a child session contains no "/".
    """


class InvalidValue(LangoStoreError, ValueError):
    """A field, a value, an id or an answer cannot be stored losslessly.

    Nothing was written. Stored JSON is text, numbers, booleans, None, lists and dicts with text keys, at most 200
    levels deep. Convert other objects first, for example with `model_dump(mode="json")`. The text of the exception
    gives the path inside the field: `metadata.items[3].when`.

    Attributes:
        field: The name of the field.
    """

    def __init__(self, field: str, reason: str, *, place: str = "") -> None:
        super().__init__(f"{field}{place}: {reason}")
        self.field = field


class InvalidMessage(InvalidValue):
    """A message cannot be stored losslessly.

    Nothing was written: none of the messages in the call was stored.

    Attributes:
        field: The name of the message's field.
    """

    @classmethod
    def of(cls, error: InvalidValue) -> InvalidMessage:
        """Convert the error of a field to the error of the message that has the field."""
        converted = cls.__new__(cls, *error.args)
        converted.args, converted.field = error.args, error.field
        return converted


class InvalidCut(LangoStoreError, ValueError):
    """A session cannot be cut or forked at this `seq`: a compaction discarded later messages.

    Nothing was written. A compaction with `discard=True` deleted the messages that it replaced. A cut at this `seq`
    would also remove the summary, the only trace of these messages.

    Attributes:
        key: The key of the session.
        seq: The `seq` that was passed.
        first: The lowest `seq` that keeps the summary. A cut at 0 is possible too: this removes everything.
    """

    def __init__(self, key: str, seq: int, first: int) -> None:
        super().__init__(
            f"session {quoted(key)} cannot be cut or forked at seq {seq}: a compaction discarded its messages up to "
            f"seq {first}; give {first} or more to keep the summary, or 0 for an empty session"
        )
        self.key = key
        self.seq = seq
        self.first = first


class InvalidFile(LangoStoreError, ValueError):
    """A file cannot be read or written, or does not have the expected format.

    Nothing was changed. Raised by imports, exports and archives.

    Attributes:
        path: The path of the file, as text.
    """

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = str(path)


class InvalidCursor(LangoStoreError, ValueError):
    """A `cursor` is not the `next` of a page of the same list, or text passed to `tail` is not a cursor.

    Pass the `next` of the previous page unchanged, with the same `order`. To `tail`, pass the `cursor` of an event
    unchanged.
    """


class DamagedDatabase(LangoStoreError):
    """Stored rows or tables are damaged and cannot be read; `lango-store doctor` finds all damaged rows."""


class DamagedMessage(DamagedDatabase):
    """A stored message, or a field of its session, is damaged and cannot be read.

    Nothing was written, except that `update` and `touch` on PostgreSQL have stored their change.
    `all_messages(damaged="return")` returns the readable messages, and this exception in the place of each damaged one.
    `lango-store doctor` finds all damaged rows.

    Attributes:
        key: The key of the session.
        seq: The `seq` of the message; 0 if the session itself, or another row such as a value, is damaged.
        field: The name of the damaged field.
        reason: The cause: what is wrong with the field.
    """

    def __init__(self, key: str, seq: int, field: str, reason: str) -> None:
        subject = f"message {seq} of session {quoted(key)}" if seq else f"session {quoted(key)}"
        self._fact = f"{subject} cannot be read, {field}: {reason}"
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


class InvalidState(LangoStoreError):
    """The object cannot do this now; nothing was written.

    The store is closed, the turn is not running, the block of a transaction has ended, a snapshot was used to write, or
    the call needs its own transaction and the object belongs to a transaction of the caller.
    """


class StoreClosed(InvalidState):
    """The store is closed. Create a new one."""


class SchemaOutOfDate(LangoStoreError):
    """The database has no tables of lango_store, or older ones than this release needs.

    Nothing was read or written. Run `lango-store db upgrade`, or open the store with `migrate=True`. A store accepts a
    newer schema. Only `schema.distribute` and `schema.undistribute` refuse a newer one with this exception: upgrade the
    package.

    Attributes:
        found: The migration revision of the database; None if it has no tables of lango_store.
        needed: The migration revision that this release needs.
        schema: The PostgreSQL schema that was examined: the first schema of the `search_path` that exists. None on
            SQLite.
        remedy: The command to run.
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
    """The database uses features that this release does not know.

    Nothing was read or written. Upgrade lango-store: only a newer release may use the database.

    Attributes:
        features: The names of the unknown features.
    """

    def __init__(self, features: Sequence[str]) -> None:
        super().__init__(
            f"the database uses {', '.join(features)}, which this release does not know: upgrade lango-store"
        )
        self.features = tuple(features)


class MigrationRefused(LangoStoreError):
    """The schema cannot be migrated, distributed or given a search index; nothing was changed.

    The text says what to do first.
    """


class InstallationIncomplete(LangoStoreError, ImportError):
    """A part of the installation is missing: a driver, an extra, or the migration revisions.

    The text says what to install.
    """


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Raise `InstallationIncomplete` with the name of an extra if an import in the block fails."""
    try:
        yield
    except ImportError as error:
        raise InstallationIncomplete(
            f"{error}: pip install 'lango-store[{extra}]'; rename a file of yours if it hides the module"
        ) from error


class UnsupportedDatabase(LangoStoreError):
    """The database, or the connection that you passed, has a setting or a version that the store cannot use.

    Nothing was read or written. The text names the setting.
    """


class DatabaseUnavailable(DatabaseError):
    """The database cannot be reached, opened, read or written.

    A write whose connection was lost may still have been committed. Repeat an append with the same message ids: a
    message that is already stored is not stored again. `Store(url, retry=timedelta(seconds=30))` repeats the calls that
    can be repeated safely.
    """


class NotPermitted(DatabaseUnavailable):
    """The database denied access; nothing was written, and a retry does not help.

    The role of the URL lacks a privilege, or a row-level security policy or a trigger refused the statement. Grant the
    privilege, or use the URL of another role.
    """


class DatabaseBusy(DatabaseError):
    """The database, or the connection pool, was busy for too long.

    The transaction was rolled back. Another transaction held a lock, the database aborted this transaction in favor of
    another one or because of a timeout, or no connection of the pool became free. Repeat the call, or let the store
    repeat it: `Store(url, retry=timedelta(seconds=30))`.
    """
