"""The formats that this package knows."""

from __future__ import annotations

from typing import Final

from lango_store.interchange.backups import Backups
from lango_store.interchange.dive import Dive
from lango_store.interchange.format import Format
from lango_store.interchange.lango import Lango
from lango_store.interchange.nanobot import Nanobot
from lango_store.interchange.shepherd import Shepherd

FORMATS: Final[dict[str, Format]] = {each.name: each for each in (Backups(), Dive(), Shepherd(), Lango(), Nanobot())}
"""The formats by name, in the order in which they are asked whether they recognise a file."""
