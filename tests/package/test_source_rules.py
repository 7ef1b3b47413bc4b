"""What holds for the files of the package as they are written."""

import ast
import re
import tomllib

from support.paths import PACKAGE, ROOT

# A difference between databases is a named method of a dialect, which says why.


def test_nothing_is_decided_by_the_name_of_a_dialect_outside_of_the_dialects() -> None:
    paths = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "_dialect"]
    decisions = [
        f"{path.relative_to(PACKAGE).as_posix()}: {ast.unparse(each)}"
        for path in paths
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.Compare) and re.search(r"dialect(_of\(.*\))?\.name", ast.unparse(each))
    ]
    assert decisions == []


# Whose rows are meant is said in one place, `binds`; what the dialects write for indexes is theirs.


def test_rows_of_a_session_are_chosen_by_one_predicate() -> None:
    by_hand = re.compile(r"\.session_key (==|!=)|(SESSION|session)\.c\.key (==|!=)")
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}: {line.strip()}"
        for room in ("_operations", "integrations")
        for path in (PACKAGE / room).rglob("*.py")
        for line in path.read_text().splitlines()
        if by_hand.search(line)
    }
    assert found == set()


def test_the_lowest_versions_that_are_tested_are_those_that_are_admitted() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    admitted = dict(re.findall(r"^([\w-]+)(?:\[\w+\])?>=([\d.]+)", "\n".join(project["dependencies"]), re.MULTILINE))
    lines = (ROOT / ".ci" / "lowest.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    beside = {"psycopg-binary": admitted["psycopg"], "click": tested["click"]}
    assert tested == admitted | beside
