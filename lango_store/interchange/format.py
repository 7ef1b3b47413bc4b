"""`Format`, the functions that detect, read and write files of another system, and the reports of their results."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, BinaryIO, ClassVar, Final

import sqlalchemy as sa
from pydantic import BeforeValidator, Field, computed_field

from lango_store import UNSET
from lango_store.errors import DamagedMessage, InvalidFile, InvalidKey, InvalidValue, SessionNotFound, quoted
from lango_store.interchange import exporting, importing
from lango_store.interchange.draft import SessionDraft, Skipped
from lango_store.interchange.files import state
from lango_store.interchange.pieces import ROWS, Outcome, Pause
from lango_store.interchange.source import check_unchanged
from lango_store.rows import Value
from lango_store.store import Store


def _printable(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


Shown = Annotated[str, BeforeValidator(_printable)]
"""Text that contains a path. Bytes of the path that are not valid text are escaped."""


class FileReport(Value):
    """The result of importing a file. With `dry_run`, the result that a real import would have.

    Attributes:
        path: The file.
        format: The name of the file's format, None if it is unknown.
        keys: The keys of the created sessions.
        messages: The number of messages in the created sessions.
        values: The number of created shared values.
        already_there: The keys of sessions that already exist with the same messages. They were not changed.
        collided: The keys of existing sessions with different messages. They were not changed.
        skipped: Lines that could not be read, or could not be stored unchanged, with the reasons; and shared values
            that exist with another value.
        error: The reason why the file could not be imported, None if it could. With an `error`, only the sessions in
            `keys` were imported, normally none.
        dry_run: True for a dry run, which writes nothing.
    """

    path: Shown
    format: str | None = None
    keys: list[str] = Field(default_factory=list)
    messages: int = 0
    values: int = 0
    already_there: list[str] = Field(default_factory=list)
    collided: list[str] = Field(default_factory=list)
    skipped: list[Skipped] = Field(default_factory=list)
    error: Shown | None = None
    dry_run: bool = False

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sessions(self) -> int:
        """The number of created sessions."""
        return len(self.keys)


class Exported(Value):
    """The result of exporting a session.

    Attributes:
        key: The key of the session. For a shared value that cannot be read, its scope; `error` is then set.
        path: The file, None if there is an `error` or the target is an open file.
        records: The number of records that were left out, because the format does not support records.
        unchanged: True if the file already existed with the same content, so nothing was written.
        error: The reason why the session was not exported, None if it was.
    """

    key: str
    path: Shown | None = None
    records: int = 0
    unchanged: bool = False
    error: Shown | None = None


FILE_FAULTS: Final = (InvalidFile, InvalidKey, InvalidValue)
"""Errors that concern one file. The import continues with the next file."""

SESSION_FAULTS: Final = (*FILE_FAULTS, SessionNotFound, DamagedMessage)
"""Errors that concern one session. The export continues with the next session."""


def _no_write(draft: SessionDraft, folder: Path, *, replace: Collection[Path] = ()) -> Path:
    raise NotImplementedError


@dataclass(frozen=True)
class Format:
    """The file format of another system."""

    name: str
    """The name on the command line."""
    recognizes: Callable[[Path], bool]
    """Returns True if the name and the first bytes of a file match the format."""
    read: Callable[..., Iterable[SessionDraft]]
    """`read(path, skipped)` reads the sessions of a file, and appends unreadable or changed lines to `skipped`."""
    write: Callable[..., Path] = _no_write
    """`write(draft, folder, replace=())` writes a session to the file that its system expects; returns the path.

    `replace` has the paths of the existing files that may be replaced.
    """
    rank: Callable[[Path], int] = lambda _: 0
    """Files with a lower rank are imported first. Of two files with the same key, the first one is imported."""

    exports_expired: ClassVar[bool] = False

    @property
    def is_writable(self) -> bool:
        """True if sessions can be exported to the format."""
        return self.write is not _no_write

    def import_file(self, store: Store, path: Path, *, planned: set[str] | None = None) -> FileReport:
        """Import a file. If a message cannot be stored, nothing of the file is written.

        Many sessions are written in several transactions, so that other writers do not wait long. With `planned`,
        nothing is written: the set contains the keys that earlier files would have created, and the keys of this file
        are added.
        """
        context, dry_run = store._context, planned is not None
        report = FileReport(path=str(path), format=self.name, dry_run=dry_run)
        skipped: list[Skipped] = []
        pause = Pause(context)
        try:
            drafts = self._checked(path, skipped, context.clock_time)
            draft = next(drafts, None)
            while draft is not None:
                with context.snapshot() if dry_run else context.transaction() as connection:
                    done: list[Outcome] = []
                    while draft is not None and sum(each.messages for each in done) < ROWS:
                        done.append(_import_draft(store, connection, draft, planned))
                        draft = next(drafts, None)
                for outcome in done:  # counted after the commit
                    count(report, outcome)
                pause.after_batch()
        except FILE_FAULTS as error:
            report.error = str(error)
        report.skipped = sorted(skipped, key=lambda each: (each.line, each.reason))
        return report

    def _checked(self, path: Path, skipped: list[Skipped], now: Callable[[], datetime]) -> Iterator[SessionDraft]:
        """Yield the sessions of a file. If there are several, all are checked first, and then read again.

        So a file that does not fit into memory is imported, and one with an invalid session is not written in part.
        """
        before = state(path)
        drafts = iter(self.read(path, skipped))
        first = list(islice(drafts, 2))
        if len(first) < 2:
            yield from first
            return
        for draft in chain(first, drafts):
            importing.check(draft, now())
        check_unchanged(path, before)
        yield from self.read(path, [])

    def export(
        self, store: Store, keys: Iterable[str], to: Path | BinaryIO, *, shared: bool = False, replace: bool = False
    ) -> Iterator[Exported]:
        """Write each session to a separate file, each from its own snapshot.

        With `replace`, files that exist before the export are replaced. Of two sessions with the same file name, the
        second one is not exported.
        """
        if not isinstance(to, Path):
            raise ValueError(f"{self.name} writes a file for each session: give a folder, or export as backup")
        before = {path: state(path) for path in to.iterdir() if path.is_file()} if to.is_dir() else {}
        replaceable = {*before} if replace else set()
        for key in keys:
            try:
                with store._context.snapshot(allow_replica=True) as connection:
                    draft = exporting.draft(connection, store._context.moment(connection), key, self.name)
                    path = self.write(draft, to, replace=replaceable)
                replaceable.discard(path)
                unchanged = before.get(path) == state(path)
                yield Exported(key=key, path=str(path), records=draft.records, unchanged=unchanged)
            except SESSION_FAULTS as error:
                yield Exported(key=key, error=error.fact)


def _append_branches(store: Store, draft: SessionDraft) -> int:
    """Append the branches of a draft that was imported; return the number of their messages."""
    conversation = store.conversation(draft.key)
    seqs = [message.seq for message in conversation.all_messages()]
    for branch in draft.branches:
        after = seqs[branch.kept - 1] if branch.kept else 0
        stored = conversation.append_messages(branch.messages, replace_after=after, keep=True)
        seqs[branch.kept :] = [message.seq for message in stored]
    return sum(len(branch.messages) for branch in draft.branches)


def _import_draft(store: Store, connection: sa.Connection, draft: SessionDraft, planned: set[str] | None) -> Outcome:
    context = store._context
    now = context.now(connection)
    if planned is None:
        ttl = context.ttl(draft.key, UNSET)
        messages = importing.import_draft(connection, now, draft, ttl=ttl, encode=context.batch)
        if messages is not None and draft.branches:
            messages += _append_branches(store.using(connection), draft)
            importing.set_times(connection, now, draft)
    else:
        messages = importing.dry_run(connection, now, draft, planned)
    if messages is not None:
        return Outcome(draft.key, "imported", messages)
    is_stored = importing.is_stored(exporting.log(connection, draft.key), draft)
    return Outcome(draft.key, "already there" if is_stored else "collided")


def count(report: FileReport, outcome: Outcome) -> None:
    """Add the result for a session or a shared value to the report of its file."""
    if outcome.name is not None:
        report.values += outcome.state == "imported"
        if outcome.state == "collided":
            reason = f"value {quoted(outcome.name)} of scope {quoted(outcome.key)}: the name is taken"
            report.skipped.append(Skipped(line=outcome.line, reason=reason))
    elif outcome.state == "imported":
        report.keys.append(outcome.key)
        report.messages += outcome.messages
    else:
        (report.already_there if outcome.state == "already there" else report.collided).append(outcome.key)
