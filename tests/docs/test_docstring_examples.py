"""The complete examples in docstrings run."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import PACKAGE

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
EXAMPLE = re.compile(r"^ +```python$", re.MULTILINE)
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if EXAMPLE.search(path.read_text())]


def programs(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the program of each docstring. Examples without imports are not complete programs."""
    for node in ast.walk(ast.parse(path.read_text())):
        docstring = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
        for program in re.findall(r"^    ```python\n(.*?)^    ```$", docstring or "", re.MULTILINE | re.DOTALL):
            if re.search(r"^ *(from|import) ", program, re.MULTILINE):
                yield getattr(node, "name", "module"), program


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_examples_in_docstrings_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (name, program) in enumerate(programs(path)):
        (folder := tmp_path / str(number)).mkdir()
        monkeypatch.chdir(folder)
        exec(compile("if True:\n" + program, f"{path.name}-{name}", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(
    ("file", "name"), [("store.py", "Store"), ("aio.py", "AsyncStore"), ("testing/__init__.py", "Clock")]
)
def test_examples_of_the_main_classes_are_found(file: str, name: str) -> None:
    assert PACKAGE / file in FILES
    assert name in dict(programs(PACKAGE / file))
