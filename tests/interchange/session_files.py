"""Files of other systems under tests/data, and what tests of every format do with them."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from support.paths import DATA
from support.session_checks import assert_sound

from lango_store import Store, interchange
from lango_store._values.model import Message
from lango_store.errors import LangoStoreError
from lango_store.interchange import importing
from lango_store.interchange.draft import Draft, Part

Read = Callable[..., Iterable[Draft]]
Write = Callable[..., Path]


def golden(system: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / system / "golden.json").read_text())
    return found


def messages(draft: Draft) -> list[Message]:
    return [message for part in draft.parts for message in part.messages]


def parts(draft: Draft) -> list[Part]:
    return draft.parts


def assert_only_our_errors(
    read: Read, original: bytes, path: Path, *, rounds: int, seed: int = 7, write: Write | None = None
) -> None:
    """Read mutations of a file: each gives drafts that can land and be written, or one of our errors."""
    chance = random.Random(seed)
    for _ in range(rounds):
        path.write_bytes(_mutated(original, chance))
        try:
            for draft in read(path, []):
                importing.checked(datetime.now(UTC), draft)
                if write is not None:
                    shutil.rmtree(path.parent / "out", ignore_errors=True)
                    write(draft, path.parent / "out")
        except LangoStoreError:
            continue


def _mutated(original: bytes, chance: random.Random) -> bytes:
    data = bytearray(original)
    for _ in range(chance.randint(1, 8)):
        place = chance.randrange(len(data) + 1)
        kind = chance.randrange(5)
        if kind == 0:
            data[place : place + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            del data[place : place + chance.randint(1, 40)]
        elif kind == 2:
            data[place:place] = chance.choice(
                [b"\0", b"\xff", b"null", b"[", b"}", b'"', b"1e999", b"NaN", b"\n", b"-"]
            )
        elif kind == 3:
            depth = chance.choice([150, 250, 400, 900, 3_000])
            data[place : place + 1] = b"[" * depth + b"]" * depth
        else:
            end = min(len(data), place + chance.randint(1, 40))
            data[place:place] = data[place:end]
    return bytes(data)


def carried(make_database: Callable[[], str], path: Path, folder: Path, format: str) -> Path:
    """Import a file, export it, import what came out into another database, and give what comes out of that."""
    for number in range(2):
        with Store(make_database()) as store:
            (report,) = interchange.import_path(store, path)
            assert (report.format, report.error, len(report.keys)) == (format, None, 1)
            assert_sound(store)
            (done,) = interchange.export(store, folder / str(number), format, keys=report.keys)
            assert done.error is None
            path = Path(str(done.path))
    return path
