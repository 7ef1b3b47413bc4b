"""The reports of imports and exports."""

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
    """The result of importing a file, or with `dry_run` the result that it would have.

    `keys` are the created sessions, `messages` the number of their messages, `values` the number of created shared
    values. Sessions that are stored already with the same messages are in `already_there`, keys of different sessions
    in `collided`: neither was changed. A shared value that is stored with another value is `skipped`.
    With an `error`, nothing was imported. `format` is None if no format recognised the file.
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

    A value of a shared scope that cannot be read is an `error` by its scope.
    """

    key: str
    path: Shown | None = None
    records: int = 0
    error: Shown | None = None
