"""What an import or an export tells of each file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, computed_field

from lango_store._values.value import Value
from lango_store.interchange.draft import Skipped


def _printable(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


Shown = Annotated[str, BeforeValidator(_printable)]
"""Text with a path in it, whose bytes may be no text at all."""


class FileReport(Value):
    """What came out of a file, or with `dry_run` would come.

    `keys` are the sessions made, `messages` how many they hold, `values` how many values of shared scopes were made.
    Sessions that the store has already, with the file's messages, are `already_there`; a key under which it has another
    session is in `collided`: neither was changed. A shared value that it has otherwise is `skipped`.
    With an `error` nothing of the file was imported. `format` is None for a file that none recognised.
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
        """How many sessions were made."""
        return len(self.keys)


class Exported(Value):
    """A session on disk, or with an `error` not; `records` is how many records the format left out.

    A value of a shared scope that cannot be read is an `error` by its scope.
    """

    key: str
    path: Shown | None = None
    records: int = 0
    error: Shown | None = None
