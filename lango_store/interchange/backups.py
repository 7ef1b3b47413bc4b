"""The format `backup`: one lossless file with any number of sessions."""

import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, BinaryIO, Final, cast

from lango_store.errors import InvalidFile
from lango_store.interchange import backup_reading, files
from lango_store.interchange.backup_writing import write_sessions
from lango_store.interchange.format import Exported, FileReport, count
from lango_store.interchange.pieces import BackupPiece, Outcome, Pause, Writer
from lango_store.store import Store

FILE_NAME: Final = "lango_store.jsonl"
"""The file name of a backup that is exported to a folder."""

_SUFFIXES: Final = (Path(FILE_NAME).suffix, files.PACKED)
_IN_MEMORY: Final = 8 << 20
_BEGINNING: Final = b'{"lango_store":'


class Backups:
    """The lossless format `backup`. An export is one file, written from one snapshot."""

    name = "backup"
    exports_expired = True
    is_writable = True

    def recognizes(self, path: Path) -> bool:
        """Return True if the first bytes of a file are those of a backup."""
        try:
            with files.reading(path) as file:
                return file.read(len(_BEGINNING)) == _BEGINNING
        except InvalidFile:  # the import reports the fault
            return False

    def rank(self, path: Path) -> int:
        """Return 0: backups can be imported in any order."""
        return 0

    def import_file(self, store: Store, path: Path, *, planned: set[str] | None = None) -> FileReport:
        """Import a complete file. A damaged or incomplete file is refused, and nothing of it is written.

        The whole file is validated, and its rows are put into a temporary file, before the first session is written.
        Then about two megabytes at a time are committed, so that other writers do not wait long. An interrupted import
        continues when it is run again.

        With `planned`, nothing is written: the set contains the keys that earlier files would have created.
        """
        dry_run = planned is not None
        report = FileReport(path=str(path), format=self.name, dry_run=dry_run)
        try:
            with SpooledTemporaryFile(_IN_MEMORY) as spool:
                with files.reading(path) as file:
                    for piece in backup_reading.read(path, (line for _, line in files.lines_of(file, path))):
                        pickle.dump(piece, spool)
                spool.seek(0)
                _write(store, iter(partial(_next, spool), None), report, planned)
        except InvalidFile as error:
            report.error = str(error)
        return report

    def export(
        self, store: Store, keys: Iterable[str], to: Path | BinaryIO, *, shared: bool = False, replace: bool = False
    ) -> Iterator[Exported]:
        """Write sessions to one file, and with `shared` the values of shared scopes.

        Missing and damaged sessions are left out of the file and reported. An open file is written after the snapshot,
        from a temporary file.
        """
        chosen = list(dict.fromkeys(keys))

        def write(file: BinaryIO) -> Iterator[Exported]:
            # A slow reader of a pipe must not keep the snapshot open: the server could not vacuum, or would end it.
            with nullcontext(file) if isinstance(to, Path) else SpooledTemporaryFile(_IN_MEMORY) as written:
                with store._context.snapshot(allow_replica=True) as connection:
                    faults, unread = write_sessions(connection, chosen, written, shared=shared)
                if written is not file:
                    written.seek(0)
                    shutil.copyfileobj(written, file)
            for key in chosen:
                yield Exported(key=key, error=faults[key].fact if key in faults else None)
            yield from (Exported(key=fault.key, error=fault.fact) for fault in unread)

        return export_to(to, FILE_NAME, write, replace=replace)


def export_to(
    to: Path | BinaryIO, name: str, write: Callable[[BinaryIO], Iterator[Exported]], *, replace: bool
) -> Iterator[Exported]:
    """Write one file: `to` itself if it is open or has the suffix of `name`, otherwise `name` in the folder `to`.

    The suffix of a packed file is allowed instead of `.jsonl`.
    """
    if not isinstance(to, Path):
        yield from list(write(to))
        return
    suffix = Path(name).suffix
    path = to if to.suffix in (_SUFFIXES if suffix in _SUFFIXES else (suffix,)) and not to.is_dir() else to / name
    before = files.state(path) if path.is_file() else None
    with files.atomic_writer(path, replace=replace) as file:
        done = list(write(file))
    written = {"path": str(path), "unchanged": files.state(path) == before}
    yield from (each if each.error else each.model_copy(update=written) for each in done)


def _next(spool: IO[bytes]) -> BackupPiece | None:
    try:
        return cast(BackupPiece, pickle.load(spool))
    except EOFError:
        return None


def _write(store: Store, pieces: Iterator[BackupPiece], report: FileReport, planned: set[str] | None) -> None:
    context = store._context
    pause = Pause(context)
    for first in pieces:
        with context.transaction() if planned is None else context.snapshot() as connection:
            writer = Writer(connection, planned)
            done: list[Outcome] = []
            for piece in chain([first], () if first.is_whole else pieces):
                done += writer.write(piece)
                if piece.is_whole:
                    break
        for outcome in done:  # counted after the commit
            count(report, outcome)
        pause.after_batch()
