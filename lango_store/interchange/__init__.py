"""Import and export of files: backups, which hold everything, and the files of other systems.

Each other system reads its files into a `Draft` and writes them from one. A copy is an export and an import without a
file. The commands `import` and `export` print what `import_path` and `export` return.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from lango_store._operations import lists
from lango_store._operations.lists import Filter
from lango_store.errors import InvalidFile, quoted
from lango_store.interchange import dive, lango, nanobot, shepherd
from lango_store.interchange.backups import Backups
from lango_store.interchange.files import PACKED, unfinished
from lango_store.interchange.format import Exported, FileReport, Format
from lango_store.store import Store

__all__ = [
    "FORMATS",
    "Exported",
    "FileReport",
    "export",
    "files_of",
    "import_path",
    "recognise",
    "writable",
]

FORMATS: Final[dict[str, Format | Backups]] = {
    each.name: each
    for each in (
        Backups(),
        Format("dive", dive.recognises, dive.read, dive.write),
        Format("shepherd", shepherd.recognises, shepherd.read, shepherd.write),
        Format("lango", lango.recognises, lango.read),
        Format("nanobot", nanobot.recognises, nanobot.read, nanobot.write, nanobot.rank),
    )
}
"""The formats by name, in the order in which they are asked whether they recognise a file."""


def recognise(path: str | Path) -> str | None:
    """Return the name of a file's format, None if no format recognises it."""
    return _recognise(Path(path), FORMATS)


def _recognise(path: Path, formats: dict[str, Format | Backups]) -> str | None:
    return next((name for name, each in formats.items() if each.recognises(path)), None)


def writable() -> list[str]:
    """Return the names of the formats that sessions can be exported to."""
    return [name for name, each in FORMATS.items() if each.is_writable]


def files_of(source: str | Path, *, format: str | None = None) -> list[tuple[Path, str | None]]:
    """Return the files that an import would read, each with its format: `source` itself, or those in the folder.

    Hidden files count only if a format recognises them, unfinished files of a killed export never. With `format`, only
    the files of a folder that have that format.
    """
    source = Path(source)
    formats = FORMATS if format is None else {format: _known(format)}
    try:
        if not source.is_dir():
            return [(source, (format or recognise(source)) if source.is_file() else None)]
        found = sorted(path for path in source.iterdir() if path.is_file() and not unfinished(path))
    except OSError as error:
        raise InvalidFile(source, f"cannot be looked at ({error.strerror}): check its permissions") from error
    named = [(path, _recognise(path, formats)) for path in found]
    chosen = [(path, name) for path, name in named if name or (format is None and not path.name.startswith("."))]
    return sorted(chosen, key=lambda each: FORMATS[each[1]].rank(each[0]) if each[1] else 0)


def import_path(
    store: Store,
    source: str | Path,
    *,
    format: str | None = None,
    dry_run: bool = False,
    on_file: Callable[[FileReport], None] | None = None,
) -> list[FileReport]:
    """Import a file, or the files of a folder, and return a report of each.

    A session whose key exists is not changed, so that a second run imports nothing. A file that cannot be imported has
    an error in its report, and the next one is read. Each is checked to its end before its first session is written;
    many sessions are committed in batches, and a run that was interrupted can be repeated. Files are never changed.
    `on_file` is called after each file; `format` is recognised when not given. A file with a line of more than 256 MB
    is refused before that line is parsed. An import of `jsonl` takes memory for its largest line, any other for its
    whole file.
    """
    reports: list[FileReport] = []
    planned: set[str] | None = set() if dry_run else None
    for path, name in files_of(source, format=format):
        if name is not None:
            report = FORMATS[name].import_file(store, path, planned=planned)
        else:
            error = _unknown(path) if path == Path(source) or path.suffix in _SESSIONS else None
            report = FileReport(path=str(path), error=error, dry_run=dry_run)
        reports.append(report)
        if on_file is not None:
            on_file(report)
    return reports


_SESSIONS: Final = (".jsonl", PACKED)
"""Suffixes of session files: in a folder too it is an error if no format recognises such a file."""


def _unknown(path: Path) -> str:
    if not path.is_file():
        return f"{path}: is not a file or folder: check the path"
    return f"{path}: no format recognises it: name one of {', '.join(FORMATS)}"


def export(
    store: Store,
    to: str | Path | BinaryIO,
    format: str,
    *,
    keys: Sequence[str] = (),
    user_id: str | None = None,
    everything: bool = False,
    replace: bool = False,
    on_file: Callable[[Exported], None] | None = None,
) -> list[Exported]:
    """Write live sessions to a folder, as `jsonl` expired ones too: of these keys, of a user, or all.

    As `jsonl` it is one file, with `everything` the values of shared scopes in it; `to` may be its name, ending with
    `.jsonl` or `.jsonl.gz`, or an open binary file. A session that cannot be written is reported with its error, and
    the next one is written. A file that is there with the same bytes stays; with other bytes it is an error and stays
    too, unless `replace` is True. ValueError unless exactly one of `keys`, `user_id` and `everything` says which
    sessions.
    """
    if sum((bool(keys), user_id is not None, everything)) != 1:
        raise ValueError("no sessions are chosen to export: give keys, or a user_id, or everything=True (one of them)")
    chosen = _known(format)
    if format not in writable():
        raise ValueError(f"{format} can be imported only: export to one of {', '.join(writable())}")
    target = Path(to) if isinstance(to, str) else to
    done: list[Exported] = []
    which = keys or _keys(store, user_id, expired=chosen.exports_expired)
    for each in chosen.export(store, which, target, shared=everything, replace=replace):
        done.append(each)
        if on_file is not None:
            on_file(each)
    return done


def _keys(store: Store, user_id: str | None, *, expired: bool) -> list[str]:
    with store.context.snapshot(allow_replica=True) as connection:
        chosen = Filter(user_id=user_id, expired=None if expired else False)
        return lists.keys(connection, store.context.moment(connection), chosen)


def _known(format: str) -> Format | Backups:
    if format not in FORMATS:
        raise ValueError(f"{quoted(format)} is not a format: give one of {', '.join(FORMATS)}")
    return FORMATS[format]
