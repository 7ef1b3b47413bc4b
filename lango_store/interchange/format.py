"""A format of another system: how its files are recognised, read and written, and the reports about them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, ClassVar, Final

import sqlalchemy as sa
from pydantic import BeforeValidator, Field, computed_field

from lango_store._connections.context import Context
from lango_store._values.model import UNSET
from lango_store._values.value import Value
from lango_store.errors import DamagedMessage, InvalidFile, InvalidKey, InvalidValue, SessionNotFound
from lango_store.interchange import exporting, importing
from lango_store.interchange.draft import Draft, Skipped
from lango_store.interchange.files import state
from lango_store.interchange.pieces import ROWS, Outcome, Pause
from lango_store.store import Store


def _printable(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


Shown = Annotated[str, BeforeValidator(_printable)]
"""Text with a path in it, whose bytes may be no text at all."""


class FileReport(Value):
    """The result of importing a file, or with `dry_run` the result that it would have.

    `keys` are the created sessions, `messages` the number of their messages, `values` the number of created shared
    values. Sessions that are stored already with the same messages are in `already_there`, keys of different sessions
    in `collided`: neither was changed. A shared value that is stored with another value is `skipped`.
    With an `error`, nothing was imported, unless `keys` says so. `format` is None if no format recognised the file.
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
    """A session on disk, or with an `error` not; `records` is how many records the format left out.

    `unchanged` is True if the file existed with the same bytes, so that nothing was written.
    A value of a shared scope that cannot be read is an `error` by its scope.
    """

    key: str
    path: Shown | None = None
    records: int = 0
    unchanged: bool = False
    error: Shown | None = None


FILE_FAULTS: Final = (InvalidFile, InvalidKey, InvalidValue)
"""Errors of one file: the next file may be sound."""

SESSION_FAULTS: Final = (*FILE_FAULTS, SessionNotFound, DamagedMessage)
"""Errors of one session that is exported: the next one may be sound."""


def _no_write(draft: Draft, folder: Path, *, replace: bool = False) -> Path:
    raise NotImplementedError


@dataclass(frozen=True)
class Format:
    """A format of another system."""

    name: str
    """Its name on the command line."""
    recognises: Callable[[Path], bool]
    """Recognise a file by its name and first bytes."""
    read: Callable[..., Iterable[Draft]]
    """Read the sessions of a file (path, skipped); what is not read or stored unchanged is skipped."""
    write: Callable[..., Path] = _no_write
    """Write a session to the file in which its system looks for it (draft, folder, replace=), and return the path."""
    rank: Callable[[Path], int] = lambda _: 0
    """Of two files with one key, that with the lower rank is imported first, and wins."""

    exports_expired: ClassVar[bool] = False

    @property
    def is_writable(self) -> bool:
        """Return whether sessions can be exported to the format."""
        return self.write is not _no_write

    def import_file(self, store: Store, path: Path, *, planned: set[str] | None = None) -> FileReport:
        """Import a file; nothing of one with a message that cannot be stored.

        Many sessions are written in several transactions, so that other writers need not wait long. With `planned` it
        is a dry run that writes nothing: the set holds the keys that earlier files would have created, and this file's
        are added.
        """
        context, dry_run = store.context, planned is not None
        report = FileReport(path=str(path), format=self.name, dry_run=dry_run)
        skipped: list[Skipped] = []
        pause = Pause(context)
        try:
            drafts = list(self.read(path, skipped))
            for draft in drafts if len(drafts) > 1 else ():
                importing.check(draft, context.clock_time())
            while drafts:
                with context.snapshot() if dry_run else context.transaction() as connection:
                    done: list[Outcome] = []
                    while drafts and sum(each.messages for each in done) < ROWS:
                        done.append(_import_draft(context, connection, drafts[0], planned))
                        del drafts[0]
                for outcome in done:  # now that they are committed
                    count(report, outcome)
                pause.after_batch()
        except FILE_FAULTS as error:
            report.error = str(error)
        report.skipped = sorted(skipped, key=lambda each: (each.line, each.reason))
        return report

    def export(
        self, store: Store, keys: Iterable[str], to: Path | BinaryIO, *, shared: bool = False, replace: bool = False
    ) -> Iterator[Exported]:
        """Write each session to a separate file, from one snapshot."""
        if not isinstance(to, Path):
            raise ValueError(f"{self.name} writes a file for each session: give a folder, or export as jsonl")
        before = {path: state(path) for path in to.iterdir() if path.is_file()} if to.is_dir() else {}
        for key in keys:
            try:
                with store.context.snapshot(allow_replica=True) as connection:
                    draft = exporting.draft(connection, store.context.moment(connection), key, self.name)
                path = self.write(draft, to, replace=replace)
                unchanged = before.get(path) == state(path)
                yield Exported(key=key, path=str(path), records=draft.records, unchanged=unchanged)
            except SESSION_FAULTS as error:
                yield Exported(key=key, error=error.fact)


def _import_draft(context: Context, connection: sa.Connection, draft: Draft, planned: set[str] | None) -> Outcome:
    now = context.now(connection)
    if planned is None:
        ttl = context.ttl(draft.key, UNSET)
        messages = importing.import_draft(connection, now, draft, ttl=ttl, counted=context.counted)
    else:
        messages = importing.dry_run(connection, now, draft, planned)
    if messages is not None:
        return Outcome(draft.key, "imported", messages)
    is_stored = importing.is_stored(exporting.log(connection, draft.key), draft)
    return Outcome(draft.key, "already there" if is_stored else "collided", 0)


def count(report: FileReport, outcome: Outcome) -> None:
    """Add the result for a session to the report of its file."""
    if outcome.state == "imported":
        report.keys.append(outcome.key)
        report.messages += outcome.messages
    else:
        (report.already_there if outcome.state == "already there" else report.collided).append(outcome.key)
