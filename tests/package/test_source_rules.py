"""Rules for the source files of the package."""

import ast
import re
import tomllib

import pytest
from support.paths import PACKAGE, ROOT

# Each difference between databases is a named method of a dialect, with its reason.


@pytest.mark.slow
def test_only_dialect_modules_compare_the_name_of_the_dialect() -> None:
    paths = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "_dialect"]
    decisions = [
        f"{path.relative_to(PACKAGE).as_posix()}: {ast.unparse(each)}"
        for path in paths
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.Compare) and re.search(r"dialect(_of\(.*\))?\.name", ast.unparse(each))
    ]
    assert decisions == []


# `binds` has the only predicate for rows of a session. The dialects' index statements are exempt.


def test_code_has_no_comparison_of_session_keys_outside_the_shared_functions() -> None:
    by_hand = re.compile(r"\.session_key (==|!=)|(SESSION|session)\.c\.key (==|!=)")
    occurrences = {
        f"{path.relative_to(PACKAGE).as_posix()}: {line.strip()}"
        for package in ("_operations", "integrations")
        for path in (PACKAGE / package).rglob("*.py")
        for line in path.read_text().splitlines()
        if by_hand.search(line)
    }
    assert occurrences == set()


# Python 3.14 evaluates annotations when they are read; then, `list` is a method of the class that has one.


def test_annotations_in_a_class_do_not_name_its_methods() -> None:
    confused = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        if any(isinstance(each, ast.ImportFrom) and each.module == "__future__" for each in tree.body):
            continue  # annotations are texts
        for kind in (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)):
            methods = [each for each in kind.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            arguments = (each for method in methods for each in ast.walk(method.args) if isinstance(each, ast.arg))
            annotations = [*(each.annotation for each in arguments), *(each.returns for each in methods)]
            names = {each.id for part in annotations if part for each in ast.walk(part) if isinstance(each, ast.Name)}
            confused |= {f"{path.name}: {kind.name}.{each.name}" for each in methods if each.name in names}
    assert confused == set()


def test_lowest_tested_versions_equal_the_lowest_allowed_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = dict(re.findall(r"^([\w-]+)(?:\[\w+\])?>=([\d.]+)", "\n".join(project["dependencies"]), re.MULTILINE))
    lines = (ROOT / ".ci" / "lowest.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    additional = {"psycopg-binary": allowed["psycopg"], "click": tested["click"]}
    assert tested == allowed | additional
