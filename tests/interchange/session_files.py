"""Files of other systems in tests/data, and helpers for tests of all formats."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.paths import DATA
from support.session_checks import assert_sound

from lango_store import Store, interchange


def golden(system: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / system / "golden.json").read_text())
    return found


def carried(make_database: Callable[[], str], path: Path, folder: Path, format: str) -> Path:
    """Import and export a file, import the result into another database, and return what is exported from there."""
    for number in range(2):
        with Store(make_database()) as store:
            (report,) = interchange.import_path(store, path)
            assert (report.format, report.error, len(report.keys)) == (format, None, 1)
            assert_sound(store)
            (done,) = interchange.export(store, folder / str(number), format, keys=report.keys)
            assert done.error is None
            path = Path(str(done.path))
    return path
