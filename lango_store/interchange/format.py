"""What a format has to be able to do, and the import and export of formats that go through a `Draft`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar, Final

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._values.model import UNSET
from lango_store.backup.files import LONGEST_LINE
from lango_store.errors import DamagedMessage, InvalidFile, InvalidKey, InvalidValue, SessionNotFound
from lango_store.interchange import exporting, importing
from lango_store.interchange.draft import Draft, Skipped
from lango_store.interchange.reports import Exported, FileReport
from lango_store.store import Store

FILE_FAULTS: Final = (InvalidFile, InvalidKey, InvalidValue)
"""What is wrong with a file, and not with the store: the next file may be sound."""

SESSION_FAULTS: Final = (*FILE_FAULTS, SessionNotFound, DamagedMessage)
"""What keeps one session from being written to a file: the next one may be sound."""


class Format(ABC):
    """A way to store sessions in files."""

    name: ClassVar[str]
    """What it is called on the command line."""

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """Whether a file is of this format, by its name and first bytes."""

    def rank(self, path: Path) -> int:
        """Return which of several files is imported first, the lowest: of two with one key the first wins."""
        return 0

    @abstractmethod
    def import_file(
        self, store: Store, path: Path, *, planned: set[str] | None = None, longest_line: int = LONGEST_LINE
    ) -> FileReport:
        """Import a file in one transaction; an error if one of its lines has more bytes than that.

        With `planned` it is a dry run that writes nothing: the set holds the keys that earlier files would have made,
        and this file's are added.
        """


class WritableFormat(Format):
    """A format that sessions can be exported to."""

    exports_expired: ClassVar[bool] = False
    """Whether an export of all sessions has the expired ones too."""

    @abstractmethod
    def export(
        self, store: Store, keys: Iterable[str], to: Path | BinaryIO, *, shared: bool = False, replace: bool = False
    ) -> Iterator[Exported]:
        """Write sessions to files in a folder, and report each; a format of one file writes to a stream too.

        With the values of shared scopes if they are `shared` and the format has a place for them.
        """


class DraftFormat(Format):
    """A format whose files are read as drafts."""

    @abstractmethod
    def read(self, path: Path, skipped: list[Skipped], longest_line: int = LONGEST_LINE) -> list[Draft]:
        """Read the sessions of a file, their messages aside; what cannot be read or stored as it was is `skipped`."""

    def import_file(
        self, store: Store, path: Path, *, planned: set[str] | None = None, longest_line: int = LONGEST_LINE
    ) -> FileReport:
        """Import a file in one transaction; what was wrong with it stands in the report."""
        dry_run = planned is not None
        report = FileReport(path=str(path), format=self.name, dry_run=dry_run)
        skipped: list[Skipped] = []
        try:
            drafts = self.read(path, skipped, longest_line)
            with store.context.snapshot() if dry_run else store.context.transaction() as connection:
                for draft in drafts:
                    _import_draft(store.context, connection, draft, report, planned)
        except FILE_FAULTS as error:
            report = FileReport(path=str(path), format=self.name, dry_run=dry_run, error=str(error))
        report.skipped = sorted(set(skipped), key=lambda each: (each.line, each.reason))  # a file may be read twice
        return report


class WritableDraftFormat(DraftFormat, WritableFormat):
    """A format whose files are read as drafts and written from drafts, a file each."""

    @abstractmethod
    def write(self, draft: Draft, folder: Path, *, replace: bool = False) -> Path:
        """Write a session to the file in which its system looks for it, and return the path.

        A file that is there with the same bytes stays. With other bytes it stays too, and that is `InvalidFile`, unless
        `replace` is True.
        """

    def export(
        self, store: Store, keys: Iterable[str], to: Path | BinaryIO, *, shared: bool = False, replace: bool = False
    ) -> Iterator[Exported]:
        """Write each session to a file of its own, as it is at one moment."""
        if not isinstance(to, Path):
            raise ValueError(f"{self.name} writes a file for each session: give a folder, or export as jsonl")
        for key in keys:
            try:
                with store.context.snapshot(anywhere=True) as connection:
                    draft = exporting.draft(connection, store.context.moment(connection), key, self.name)
                    path = self.write(draft, to, replace=replace)
                yield Exported(key=key, path=str(path), records=draft.records)
            except SESSION_FAULTS as error:
                yield Exported(key=key, error=error.fact)


def _import_draft(
    context: Context, connection: sa.Connection, draft: Draft, report: FileReport, planned: set[str] | None
) -> None:
    now = context.now(connection)
    if planned is None:
        ttl = context.ttl(draft.key, UNSET)
        count = importing.import_draft(connection, now, draft, ttl=ttl, counted=context.counted)
    else:
        count = importing.dry_run(connection, now, draft, planned)
    if count is not None:
        report.keys.append(draft.key)
        report.messages += count
    elif importing.is_there(exporting.log(connection, now, draft.key), draft):
        report.already_there.append(draft.key)
    else:
        report.collided.append(draft.key)
