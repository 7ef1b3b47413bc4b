"""Backups: one file with any number of sessions."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO, Final

from lango_store.errors import InvalidFile, quoted
from lango_store.interchange import backup_reading, files
from lango_store.interchange.backup_writing import write_sessions
from lango_store.interchange.draft import Skipped
from lango_store.interchange.format import Exported, FileReport
from lango_store.store import Store

FILE_NAME: Final = "lango_store.jsonl"
"""The name of an export to a folder: it is of a moment, not of a session."""

_SUFFIXES: Final = (Path(FILE_NAME).suffix, files.PACKED)
_BEGINNING: Final = b'{"lango_store":'


class Backups:
    """The format `jsonl`: lossless, for backups and for moving. An export is one file, of one moment."""

    name = "jsonl"
    exports_expired = True
    is_writable = True

    def recognises(self, path: Path) -> bool:
        """Return whether a file is a backup, by its first bytes."""
        try:
            with files.reading(path) as file:
                return file.read(len(_BEGINNING)) == _BEGINNING
        except InvalidFile:  # reading it reports the fault
            return False

    def rank(self, path: Path) -> int:
        """Return 0: the order of backups does not matter."""
        return 0

    def import_file(self, store: Store, path: Path, *, planned: set[str] | None = None) -> FileReport:
        """Import a file in one transaction; a file that is damaged or cut off gives an error and no session."""
        dry_run = planned is not None
        report = FileReport(path=str(path), format=self.name, dry_run=dry_run)
        try:
            with (
                files.reading(path) as file,
                store.context.snapshot() if dry_run else store.context.transaction() as connection,
            ):
                lines = (line for _, line in files.lines_of(file, path))
                for outcome in backup_reading.load(connection, path, lines, planned=planned):
                    _count(report, outcome)
        except InvalidFile as error:
            return FileReport(path=str(path), format=self.name, dry_run=dry_run, error=str(error))
        return report

    def export(
        self, store: Store, keys: Iterable[str], to: Path | BinaryIO, *, shared: bool = False, replace: bool = False
    ) -> Iterator[Exported]:
        """Write these sessions to one file; what is not there or cannot be read is left out and reported.

        With the values of shared scopes if they are `shared`.
        """
        chosen = list(dict.fromkeys(keys))
        path = _file(to) if isinstance(to, Path) else None
        with (
            _opened(to if path is None else path, replace=replace) as file,
            store.context.snapshot(anywhere=True) as connection,
        ):
            faults, unread = write_sessions(connection, chosen, file, shared=shared)
        for key in chosen:
            fault = faults.get(key)
            yield Exported(key=key, error=fault.fact) if fault else Exported(key=key, path=path and str(path))
        yield from (Exported(key=fault.key, error=fault.fact) for fault in unread)


def _opened(to: Path | BinaryIO, *, replace: bool) -> AbstractContextManager[BinaryIO]:
    return files.atomic_writer(to, replace=replace) if isinstance(to, Path) else nullcontext(to)


def _file(to: Path) -> Path:
    """Return the file that is meant: `to` itself if it is named like one, else one in that folder."""
    return to if to.suffix in _SUFFIXES and not to.is_dir() else to / FILE_NAME


def _count(report: FileReport, outcome: backup_reading.Outcome | backup_reading.SharedValue) -> None:
    if isinstance(outcome, backup_reading.SharedValue):
        report.values += outcome.state == "imported"
        if outcome.state == "collided":
            reason = f"value {quoted(outcome.name)} of scope {quoted(outcome.scope)}: the name is taken"
            report.skipped.append(Skipped(line=outcome.line, reason=reason))
    elif outcome.state == "imported":
        report.keys.append(outcome.key)
        report.messages += outcome.messages
    elif outcome.state == "already there":
        report.already_there.append(outcome.key)
    else:
        report.collided.append(outcome.key)
