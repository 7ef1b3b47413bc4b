"""Backups: files of our own format, any number of sessions in one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import sqlalchemy as sa

from lango_store.errors import DamagedMessage, InvalidFile, SessionNotFound
from lango_store.interchange import files, jsonl
from lango_store.interchange.reports import Exported, FileReport
from lango_store.store import Store

NAME: Final = "jsonl"
FILE_NAME: Final = "lango_store.jsonl"
"""The name of every export: it is of a moment, not of a session."""

_BEGINNING: Final = b'{"lango_store":'


class Backups:
    """The format `jsonl`: lossless, for backups and for moving. An export is one file, of one moment."""

    name = NAME
    writes = True
    expired = True

    def recognises(self, path: Path) -> bool:
        """Tell by a file's first bytes whether it is one of this format."""
        try:
            with files.reading(path) as file:
                return file.read(len(_BEGINNING)) == _BEGINNING
        except InvalidFile:  # who reads it will say so
            return False

    def rank(self, path: Path) -> int:
        """Treat all files alike."""
        return 0

    def bring_in(self, store: Store, path: Path, *, rehearsed: set[str] | None = None) -> FileReport:
        """Import a file in one transaction; a file that is damaged or cut off gives an error and no session."""
        dry_run = rehearsed is not None
        report = FileReport(path=str(path), format=self.name, dry_run=dry_run)
        try:
            with (
                files.reading(path) as file,
                store._access.read() if dry_run else store._access.write() as connection,
            ):
                for outcome in jsonl.load(connection, path, _texts(file), rehearsed=rehearsed):
                    _count(report, outcome)
        except InvalidFile as error:
            return FileReport(path=str(path), format=self.name, dry_run=dry_run, error=str(error))
        return report

    def take_out(self, store: Store, keys: Iterable[str], folder: Path) -> Iterator[Exported]:
        """Write these sessions to one file; what is not there or cannot be read is left out of it and told of."""
        chosen = list(dict.fromkeys(keys))
        path = folder / FILE_NAME
        with files.writing(path) as file, store._access.read() as connection:
            faults = _write(connection, chosen, file)
        for key in chosen:
            fault = faults.get(key)
            yield Exported(key=key, error=str(fault)) if fault else Exported(key=key, path=str(path))


def _texts(file: BinaryIO) -> Iterator[str]:
    return (line.decode() for line in file)


def _count(report: FileReport, outcome: jsonl.Outcome) -> None:
    if outcome.state == "imported":
        report.keys.append(outcome.key)
        report.messages += outcome.messages
    elif outcome.state == "already there":
        report.already_there.append(outcome.key)
    else:
        report.collided.append(outcome.key)


def _write(connection: sa.Connection, keys: list[str], file: BinaryIO) -> dict[str, Exception]:
    faults: dict[str, Exception] = {}
    _put(file, jsonl.first_line())
    for key in keys:
        start = file.tell()
        try:
            for line in jsonl.session_lines(connection, key):
                _put(file, line)
        except (SessionNotFound, DamagedMessage) as error:
            faults[key] = error
            file.seek(start)
            file.truncate()
    _put(file, jsonl.last_line(len(keys) - len(faults)))
    return faults


def _put(file: BinaryIO, line: str) -> None:
    file.write(line.encode() + b"\n")
