"""The formats that this package knows."""

from __future__ import annotations

from typing import Final

from lango_store.interchange.backups import Backups
from lango_store.interchange.dive import DIVE
from lango_store.interchange.format import Format
from lango_store.interchange.lango import LANGO
from lango_store.interchange.nanobot import NANOBOT
from lango_store.interchange.shepherd import SHEPHERD

FORMATS: Final[dict[str, Format | Backups]] = {each.name: each for each in (Backups(), DIVE, SHEPHERD, LANGO, NANOBOT)}
"""The formats by name, in the order in which they are asked whether they recognise a file."""
