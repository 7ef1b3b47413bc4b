"""The complete examples in docstrings run."""

import ast
import re
from pathlib import Path

import pytest

import lango_store

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def examples() -> dict[str, str]:
    """Return the programs in docstrings, by file and line. Examples without imports are not complete programs."""
    found = {}
    package = Path(lango_store.__file__).parent
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            docstring = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            for program in re.findall(r"^    ```python\n(.*?)^    ```$", docstring or "", re.MULTILINE | re.DOTALL):
                if re.search(r"^ *(from|import) ", program, re.MULTILINE):
                    found[f"{path.relative_to(package)}-{getattr(node, 'name', 'module')}"] = program
    return found


EXAMPLES = examples()


def test_collected_docstring_examples_include_store_async_store_and_clock() -> None:
    assert {"store.py-Store", "aio.py-AsyncStore", "testing/__init__.py-Clock"} <= set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_in_a_docstring_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile("if True:\n" + EXAMPLES[name], name, "exec"), {"__name__": "__main__"})
