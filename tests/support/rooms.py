"""The sizes of the core and of each room, and the mentions of rooms: `python -m support.rooms` prints them."""

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from support.paths import PACKAGE

from lango_store._rooms.composition import ROOMS

COMPOSITION: Final = {
    *("__init__.py", "store.py", "conversation.py", "aio.py", "cli/__init__.py"),
    *("following.py", "sse.py"),
    *("errors/__init__.py", "schema/__init__.py", "tables/__init__.py"),
    *("_rooms/__init__.py", "_rooms/composition.py", "_values/session.py"),
}
"""The files that put the core and the rooms together."""

CORE: Final = (
    *("_connections", "_dialect", "_engine", "_operations", "_parts", "_rows", "_services", "_values", "schema"),
    *("errors/core.py", "tables/core.py"),
)
"""The packages and modules of the core."""

_SKIPPED: Final = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def files(*parts: str) -> list[Path]:
    """Return the source files of packages and modules of the package."""
    paths = [PACKAGE / part for part in parts]
    return [file for path in paths for file in ([path] if path.suffix else sorted(path.rglob("*.py")))]


@functools.cache
def code(file: Path) -> list[str]:
    """Return the lines of a file that have code, without comments and docstrings."""
    text = file.read_text()
    prose = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    numbers = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _SKIPPED
        for line in range(token.start[0], token.end[0] + 1)
    }
    lines = text.splitlines()
    return [re.sub(r"\s#.*", "", lines[number - 1]) for number in sorted(numbers - prose)]


def size(*parts: str) -> int:
    """Return the number of lines of code of packages and modules."""
    return sum(len(code(file)) for file in files(*parts))


def path_of(room: str) -> str:
    """Return the folder or the module of a room."""
    return f"_rooms/{room}" if (PACKAGE / "_rooms" / room).is_dir() else f"_rooms/{room}.py"


@functools.cache
def _defined(file: Path) -> set[str]:
    """Return the public names that a module defines: classes, constants, and tables."""
    text = file.read_text()
    names = {*re.findall(r'__tablename__ = "(\w+)"', text)}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            named = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
            names |= {name for name in named if name.isupper()}
    return {name for name in names if not name.startswith("_")}


def names_of(room: str) -> set[str]:
    """Return the names by which code can refer to a room: what only its modules define."""
    own = files(path_of(room))
    defined = {name for file in own for name in _defined(file)}
    elsewhere = {name for file in files(".") if file not in own for name in _defined(file)}
    return (defined - elsewhere) | {f"_rooms.{room}", f"_rooms import {room}"}


def mentions(room: str, among: list[Path]) -> Iterator[tuple[str, str]]:
    """Yield each file and line of code that refers to a room from outside, apart from the composition."""
    words = re.compile(r"\b(" + "|".join(map(re.escape, sorted(names_of(room)))) + r")\b")
    for file in among:
        name = file.relative_to(PACKAGE).as_posix()
        if file not in files(path_of(room)) and name not in COMPOSITION:
            yield from ((name, line.strip()) for line in code(file) if words.search(line))


def imports(room: str) -> set[str]:
    """Return the other rooms that a room imports directly."""
    text = "\n".join(line for file in files(path_of(room)) for line in code(file))
    named = {*re.findall(r"lango_store\._(?:rooms|features)\.(\w+)", text)}
    named |= {*re.findall(r"from lango_store\._(?:rooms|features) import (\w+)", text)}
    return named - {room}


if __name__ == "__main__":
    print(f"{size(*CORE):6} core")
    print(f"{sum(len(code(PACKAGE / name)) for name in COMPOSITION):6} composition")
    for room in sorted(ROOMS, key=lambda room: -size(path_of(room))):
        core, outside = ({*mentions(room, among)} for among in (files(*CORE), files(".")))
        outside_files = len({file for file, _ in outside})
        print(f"{size(path_of(room)):6} {room}: {len(core)} lines of the core name it", end="")
        print(f", {len(outside)} lines of {outside_files} files outside of its folder and of the composition")
