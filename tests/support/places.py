"""A folder for test files, in memory if there is room: no test needs files that survive a crash of the machine."""

import os
import shutil
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/dev/shm")
_ROOM: Final = 3 * 1024**3


def fast_folder() -> Path:
    """Return a folder in memory if there is room, else the default temporary folder."""
    if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _ROOM:
        return _MEMORY
    return Path("/tmp")  # not $TMPDIR: paths of sockets end at 107 bytes
