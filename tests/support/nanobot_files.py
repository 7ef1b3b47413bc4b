"""nanobot's session files, and lines for new ones."""

import json
from pathlib import Path
from typing import Any

from support.paths import DATA

from lango_store import Store, interchange
from lango_store.interchange import FileReport
from lango_store.interchange.nanobot_lines import line_from_message

FILES = sorted(path for path in DATA.glob("nanobot_*/*.jsonl"))
G1 = json.loads((DATA / "nanobot_g1" / "golden.json").read_text())
G2 = json.loads((DATA / "nanobot_g2" / "golden.json").read_text())
CORRUPT = json.loads((DATA / "nanobot_g2" / "corrupt_expected.json").read_text())

METADATA = {
    "_type": "metadata",
    "key": "telegram:1",
    "created_at": "2026-01-01T00:00:00",
    "updated_at": "2026-02-01T12:00:00.000001",
    "metadata": {},
    "last_consolidated": 0,
}
HELLO = {"role": "user", "content": "hello", "timestamp": "2026-01-01T00:00:01"}


def imported(store: Store, path: Path) -> FileReport:
    (report,) = interchange.import_path(store, path)
    assert report.error is None
    return report


def exported(store: Store, folder: Path, key: str) -> Path:
    (done,) = interchange.export(store, folder / "out", "nanobot", keys=[key])
    assert done.error is None
    return Path(str(done.path))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def seen(store: Store, key: str) -> list[Any]:
    """Return the messages of a session as nanobot's lines."""
    return [line_from_message(each) for each in store.conversation(key).all_messages()]
