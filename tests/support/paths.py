"""Paths of the project and of the files that tests read."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
PACKAGE: Final = ROOT / "lango_store"
TESTS: Final = ROOT / "tests"
DATA: Final = TESTS / "data"
