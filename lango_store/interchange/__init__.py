"""Import and export of sessions: lossless backups, files of other systems, and databases of agent frameworks.

The commands `lango-store import` and `lango-store export` call `import_path` and `export`. Each format in `FORMATS`
except `backup` converts its files to a `SessionDraft`, and some also write files from one. A copy between stores uses
the same code as a backup, without a file. `lango-store adopt` calls `adopt`, which reads the databases of frameworks.
"""

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Unpack, get_args

from lango_store import SessionInfo
from lango_store.errors import InvalidFile, quoted
from lango_store.interchange import dive, lango, nanobot, plain, shepherd
from lango_store.interchange.adoption.adopting import Adopted, adopt
from lango_store.interchange.backups import Backups
from lango_store.interchange.chatgpt import CHATGPT
from lango_store.interchange.claude import CLAUDE
from lango_store.interchange.files import PACKED, unfinished
from lango_store.interchange.fine_tuning import NAME as OPENAI
from lango_store.interchange.fine_tuning import FineTuning
from lango_store.interchange.format import Exported, FileReport, Format
from lango_store.interchange.librechat import LIBRECHAT
from lango_store.interchange.open_webui import OPEN_WEBUI
from lango_store.interchange.redaction import Redact, redact_text
from lango_store.rows.storage import Filter, levels, lists
from lango_store.store import Store

__all__ = [
    "FORMATS",
    "Adopted",
    "Exported",
    "FileReport",
    "Redact",
    "adopt",
    "export",
    "files_of",
    "import_path",
    "recognize",
    "redact_text",
    "writable",
]

_NANOBOT: Final = Format("nanobot", nanobot.recognizes, nanobot.read, nanobot.write, nanobot.rank)

_FORMATS: Final[list[Format | Backups]] = [
    Backups(),
    Format("dive", dive.recognizes, dive.read, dive.write),
    Format("shepherd", shepherd.recognizes, shepherd.read, shepherd.write),
    Format("lango", lango.recognizes, lango.read),
    _NANOBOT,
    *(product.format for product in (CHATGPT, CLAUDE, OPEN_WEBUI, LIBRECHAT)),
    Format(plain.CSV, plain.recognizes_csv, plain.read_csv),
    Format(OPENAI, plain.recognizes_lines, plain.read_lines),
]
IN_ONE_FILE: Final = (Backups.name, OPENAI, CHATGPT.name, OPEN_WEBUI.name)
"""The formats of which an export writes one file with all sessions."""

FORMATS: Final = {each.name: each for each in _FORMATS}
"""The formats that can be imported, in the order in which they are tried when the format of a file is detected."""


def recognize(path: str | Path) -> str | None:
    """Detect the format of a file by its name and content.

    Args:
        path: The file.

    Returns:
        The name of the format, a key of `FORMATS`; None if the format is unknown.
    """
    return _recognize(Path(path), FORMATS)


def _recognize(path: Path, formats: dict[str, Format | Backups]) -> str | None:
    return next((name for name, each in formats.items() if each.recognizes(path)), None)


def writable() -> list[str]:
    """Return the names of the formats that `export` can write."""
    return [*(name for name, each in FORMATS.items() if each.is_writable), OPENAI]


def files_of(source: str | Path, *, format: str | None = None) -> list[tuple[Path, str | None]]:
    """Return the files that `import_path` would read, each with its format.

    Args:
        source: A file, or a folder. Subfolders are not searched.
        format: Return only the files of a folder that have this format. By default, all files are returned, except
            hidden files of an unknown format. Unfinished files of a killed export are never returned.

    Returns:
        The path and the format of each file, in the order of import. The format is None if it is unknown.

    Raises:
        InvalidFile: The folder cannot be read.
        ValueError: `format` is not the name of a format.
    """
    source, format = Path(source), None if format is None else _current_name(format)
    formats = FORMATS if format is None else {format: _format_named(format)}
    try:
        if not source.is_dir():
            with suppress(FileNotFoundError, NotADirectoryError, ValueError):
                source.stat()  # raises what is_dir() does not raise since Python 3.14
            return [(source, (format or recognize(source)) if source.is_file() else None)]
        with os.scandir(source) as entries:  # for the same reason
            paths = sorted(source / each.name for each in entries if each.is_file())
        paths = [each for each in paths if not unfinished(each)]
    except OSError as error:
        raise InvalidFile(source, f"cannot be read ({error.strerror}): check its permissions") from error
    detected = [(path, _recognize(path, formats)) for path in paths]
    chosen = [(path, name) for path, name in detected if name or (format is None and not path.name.startswith("."))]
    return sorted(chosen, key=lambda each: FORMATS[each[1]].rank(each[0]) if each[1] else 0)


def import_path(
    store: Store,
    source: str | Path,
    *,
    format: str | None = None,
    dry_run: bool = False,
    on_file: Callable[[FileReport], None] | None = None,
) -> list[FileReport]:
    """Import the sessions of a file, or of all files in a folder.

    A session whose key already exists is never changed, so an import can be repeated: a second run imports nothing.
    Source files are never changed.

    Each file is checked completely before its first session is written. The sessions of a large file are committed in
    batches, so that other writers do not wait long. If an import is interrupted, run it again.

    An import needs memory for the longest line of a file, and in the format `dive` for the ids in the file. In the
    formats `shepherd` and `lango`, which have no lines, it needs memory for the longest message; in those of chat
    products, `csv` and `openai` for the whole file. A longer line or message than 256 MiB is refused.

    Args:
        store: The store to import into.
        source: A file, or a folder. Subfolders are not searched.
        format: The format of the files, a key of `FORMATS`. By default, the format of each file is detected.
        dry_run: Return the reports that an import would have, without writing anything.
        on_file: Called with the report of each file as soon as the file is finished.

    Returns:
        A report for each file. If a file cannot be imported, its report has an `error`, and the import continues with
        the next file.

    Raises:
        InvalidFile: The folder cannot be read.
        ValueError: `format` is not the name of a format.
        DatabaseBusy: The database is busy. Sessions that were committed before are kept; run the import again.
        DatabaseUnavailable: The database cannot be reached. Sessions that were committed before are kept.
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
"""Suffixes of session files. Even in a folder, such a file with an unknown format is an error."""


def _unknown(path: Path) -> str:
    if not path.is_file():
        return f"{path}: is not a file or folder: check the path"
    return (
        f"{path}: the format is unknown: give one of {', '.join(FORMATS)} ({plain.CSV}: with the columns role and "
        f'content; {OPENAI}: with lines such as {{"messages": […]}}); for another, read the file in Python and store '
        "its messages with Store.create(key, messages=[Message.from_openai(each) for each in …])"
    )


def export(
    store: Store,
    to: str | Path | BinaryIO,
    format: str,
    *,
    keys: Sequence[str] = (),
    everything: bool = False,
    descendants: bool = False,
    replace: bool = False,
    redact: Redact | None = redact_text,
    names: nanobot.Names = "nanobot",
    on_file: Callable[[Exported], None] | None = None,
    limit: int | None = None,
    **which: Unpack[lists.Filters],
) -> list[Exported]:
    """Export sessions to files: some sessions, those that match filters, or all sessions.

    The format `backup` is a lossless backup: one file with all chosen sessions, live and expired, from one snapshot.
    The format `openai` is one file with a line for each live session, for the fine-tuning of models. `chatgpt` and
    `open-webui` are one file with all live sessions and their alternatives, see `interchange.trees`. Every other format
    writes one file for each live session.

    Without `replace`, an existing file is never changed. If its content differs from the export, that is an error.

    Args:
        store: The store to export from.
        to: The folder to write to; it is created if needed. For a format of `IN_ONE_FILE` also an open binary file, or
            the path of a file: one that ends with `.json` for `chatgpt` and `open-webui`, with `.jsonl` or `.jsonl.gz`
            for the others. A backup is written to an open file after its snapshot has ended, from a temporary file, so
            that a slow file or pipe keeps no transaction open.
        format: The format to write, one of `writable()`.
        keys: The keys of the sessions to export.
        everything: Export all sessions, and as `backup` also the values of shared scopes.
        descendants: Export the descendants of each chosen session too. Default: False.
        replace: Replace existing files. Default: False.
        redact: For `openai`: a function that replaces personal data and secrets in a text, or None for unchanged texts.
            The other formats are never redacted.
        names: For `nanobot`: `"nanobot"` (the default) for the file names that nanobot expects, which for new sessions
            are base64 (`dGVsZWdyYW06MQ.jsonl`), or `"readable"` for the names that nanobot 0.2 and its Go port expect
            (`telegram_1.jsonl`). With readable names, two keys can have the same name; then the second session is not
            exported.
        on_file: Called with each result when the session is finished.
        limit: Export only this many sessions, the last updated ones.
        **which: Export the sessions that match all of these filters of `Store.list_sessions`, except `expired`.

    Returns:
        A result for each session, and for each shared value that cannot be read. If a session cannot be exported, its
        result has an `error`, and the export continues with the next session.

    Raises:
        InvalidFile: With a format of `IN_ONE_FILE`: the file exists with different content, or cannot be written.
        ValueError: Not exactly one of `keys`, `everything` and filters is given; or `format` cannot be written,
            or does not support an open file as `to`, a function of yours as `redact`, or `names`.
        DatabaseBusy: The database is busy.
        DatabaseUnavailable: The database cannot be reached.
    """
    format = _current_name(format)
    if "expired" in which:
        raise TypeError("exports cannot filter by expired: only backups include expired sessions")
    filters: dict[str, Any] = {name: value for name, value in which.items() if value is not None}
    if sum((bool(keys), bool(filters) or limit is not None, everything)) != 1:
        raise ValueError("give exactly one of keys, filters such as user_id, and everything=True")
    chosen = FineTuning(redact) if format == OPENAI else _format_named(format)
    if format not in writable():
        raise ValueError(f"{format} can only be imported: export to one of {', '.join(writable())}")
    if redact not in (redact_text, None) and format != OPENAI:
        raise ValueError(f"{format} cannot be redacted: leave out redact, or export as {OPENAI}")
    if names != "nanobot":
        if format != _NANOBOT.name or names not in get_args(nanobot.Names):
            raise ValueError(f"names={names!r}: give one of {', '.join(get_args(nanobot.Names))}, and format='nanobot'")
        chosen = dataclasses.replace(_NANOBOT, write=partial(nanobot.write, names=names))
    target = Path(to) if isinstance(to, str) else to
    done: list[Exported] = []
    session_keys = keys or _keys(store, expired=chosen.exports_expired, limit=limit, **filters)
    if descendants and not everything:
        session_keys = list(dict.fromkeys(_with_descendants(store, session_keys, expired=chosen.exports_expired)))
    for each in chosen.export(store, session_keys, target, shared=everything, replace=replace):
        done.append(each)
        if on_file is not None:
            on_file(each)
    return done


def _with_descendants(store: Store, keys: Sequence[str], *, expired: bool) -> Iterator[str]:
    for key in keys:
        yield key
        yield from _keys(store, expired=expired, key_prefix=levels.below(key))


def _keys(store: Store, *, expired: bool, limit: int | None = None, **which: Any) -> list[str]:
    if limit is not None:
        return [info.key for info in _last_updated(store, limit, expired=None if expired else False, **which)]
    with store._context.snapshot(allow_replica=True) as connection:
        sessions = Filter(expired=None if expired else False, **which)
        return lists.keys(connection, store._context.moment(connection), sessions)


def _last_updated(store: Store, limit: int, **which: Any) -> Iterator[SessionInfo]:
    cursor = None
    while limit > 0:
        page = store.list_sessions(limit=min(limit, lists.MAX_PAGE), cursor=cursor, **which)
        yield from page.items
        limit -= len(page.items)
        if (cursor := page.next) is None:
            return


def _current_name(format: str) -> str:
    """Return the present name of a format; warn of an earlier name."""
    if format != "jsonl":
        return format
    warnings.warn("the format jsonl is now called backup", DeprecationWarning, stacklevel=3)
    return Backups.name


def _format_named(format: str) -> Format | Backups:
    if format not in FORMATS:
        raise ValueError(f"{quoted(format)} is not a format: give one of {', '.join(FORMATS)}")
    return FORMATS[format]
