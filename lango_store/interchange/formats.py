"""The formats we know, and what a format has to be able to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import sqlalchemy as sa

from lango_store.columns import checked_key
from lango_store.errors import DamagedMessage, InvalidFile, InvalidKey, InvalidMessage, SessionNotFound
from lango_store.interchange import dive, landing, lango, nanobot, shepherd, takeoff
from lango_store.interchange.backups import Backups
from lango_store.interchange.draft import Draft, Skipped
from lango_store.interchange.files import LONGEST_LINE
from lango_store.interchange.reports import Exported, FileReport
from lango_store.model import UNSET
from lango_store.operations.binds import SESSION, of_session
from lango_store.store import Store

THE_FILES_FAULT: Final = (InvalidFile, InvalidKey, InvalidMessage)
"""What is wrong with a file, and not with the store: the next file may be sound."""

THE_SESSIONS_FAULT: Final = (*THE_FILES_FAULT, SessionNotFound, DamagedMessage)
"""What keeps one session from being written to a file: the next one may be sound."""


class Format(Protocol):
    """A way to keep sessions in files."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""

    @property
    def writes(self) -> bool:
        """Whether sessions can be exported to it."""

    @property
    def expired(self) -> bool:
        """Whether an export of all sessions has the expired ones too."""

    def recognises(self, path: Path) -> bool:
        """Tell by a file's name and first bytes whether it is one of this format."""

    def rank(self, path: Path) -> int:
        """Say which of several files comes first, the lowest: of two with one key the first is kept."""

    def bring_in(
        self, store: Store, path: Path, *, rehearsed: set[str] | None = None, longest_line: int = LONGEST_LINE
    ) -> FileReport:
        """Import a file in one transaction; an error if one of its lines has more bytes than that.

        On a dry run `rehearsed` holds the keys that earlier files would have made; this file's are added to it, and
        nothing is written.
        """

    def take_out(
        self, store: Store, keys: Iterable[str], to: Path | BinaryIO, *, replace: bool = False
    ) -> Iterator[Exported]:
        """Write sessions to files in a folder, and tell of each; a format of one file writes to a stream too."""


class DraftFormat(Protocol):
    """What a module has that reads files as drafts."""

    @property
    def NAME(self) -> str: ...  # noqa: D102, N802

    def recognises(self, path: Path) -> bool: ...  # noqa: D102

    def read(self, path: Path, skipped: list[Skipped], longest_line: int) -> list[Draft]: ...  # noqa: D102


class Drafts:
    """A format that reads its files as drafts, and perhaps writes drafts as files: a module of this package.

    A module may have `rank(path)`.
    """

    expired = False

    def __init__(self, module: DraftFormat) -> None:
        self._module = module
        self.name = module.NAME
        self.writes = hasattr(module, "write")

    def recognises(self, path: Path) -> bool:
        """Tell by a file's name and first bytes whether it is one of this format."""
        return self._module.recognises(path)

    def rank(self, path: Path) -> int:
        """Say which of several files comes first."""
        return self._module.rank(path) if hasattr(self._module, "rank") else 0

    def bring_in(
        self, store: Store, path: Path, *, rehearsed: set[str] | None = None, longest_line: int = LONGEST_LINE
    ) -> FileReport:
        """Import a file in one transaction; what was wrong with it stands in the report."""
        dry_run = rehearsed is not None
        report = FileReport(path=str(path), format=self.name, dry_run=dry_run)
        skipped: list[Skipped] = []
        try:
            drafts = self._module.read(path, skipped, longest_line)
            with store.access.snapshot() if dry_run else store.access.transaction() as connection:
                for draft in drafts:
                    _bring_in(store, connection, draft, report, rehearsed)
        except THE_FILES_FAULT as error:
            report = FileReport(path=str(path), format=self.name, dry_run=dry_run, error=str(error))
        report.skipped = sorted(set(skipped), key=lambda each: (each.line, each.reason))  # a file may be read twice
        return report

    def take_out(
        self, store: Store, keys: Iterable[str], to: Path | BinaryIO, *, replace: bool = False
    ) -> Iterator[Exported]:
        """Write each session to a file of its own, as it is at one moment."""
        if not isinstance(to, Path):
            raise ValueError(f"{self.name} writes a file a session: give a folder, or export as jsonl")
        write: Any = self._module.write  # type: ignore[attr-defined] # `writes` said so
        for key in keys:
            try:
                with store.access.snapshot() as connection:
                    path = write(takeoff.draft(connection, store.access.moment(connection), key), to, replace=replace)
                yield Exported(key=key, path=str(path))
            except THE_SESSIONS_FAULT as error:
                yield Exported(key=key, error=error.fact)


def _bring_in(
    store: Store, connection: sa.Connection, draft: Draft, report: FileReport, rehearsed: set[str] | None
) -> None:
    access = store.access
    now = access.now(connection)
    if rehearsed is None:
        ttl = access.ttl(draft.key, UNSET)
        number = landing.land(connection, now, draft, ttl=ttl, counted=access.counted)
    else:
        number = _rehearse(connection, draft, now, rehearsed)
    if number is not None:
        report.keys.append(draft.key)
        report.messages += number
    elif _is_there(connection, draft, now):
        report.already_there.append(draft.key)
    else:
        report.collided.append(draft.key)


def _rehearse(connection: sa.Connection, draft: Draft, now: datetime, rehearsed: set[str]) -> int | None:
    taken = sa.select(SESSION.c.key).where(of_session(SESSION, checked_key(draft.key)))
    if draft.key in rehearsed or connection.execute(taken).first():
        return None
    rehearsed.add(draft.key)
    return landing.rehearse(draft, now)


def _is_there(connection: sa.Connection, draft: Draft, now: datetime) -> bool:
    try:
        return landing.is_there(takeoff.log(connection, now, draft.key), draft)
    except (SessionNotFound, DamagedMessage):  # expired, or not to be read: what it holds is not the file's
        return False


FORMATS: Final[dict[str, Format]] = {
    each.name: each for each in (Backups(), Drafts(dive), Drafts(shepherd), Drafts(lango), Drafts(nanobot))
}
"""The formats by name, in the order in which they are asked whether they recognise a file."""
