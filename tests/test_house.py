"""What holds for the files of the package as they are written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "lango_store"

# A verb of Store or Conversation is done again without a search index that is damaged; whoever stands above them and
# lends a connection to write sees to it too.

ABOVE_THE_VERBS = ("backup", "integrations", "interchange")

WITHOUT_CARE_FOR_THE_INDEX = {
    "backup/copying.py copy": "adds sessions, and takes no word away",
    "backup/copying.py _copy_shared": "adds values, which are not in the index",
    "interchange/backups.py import_file": "adds sessions, and takes no word away",
    "interchange/format.py import_file": "adds sessions, and takes no word away",
    "integrations/google_adk/service.py create": "a step of `_create`",
    "integrations/claude_agent_sdk/store.py _delete": "writes by verbs only, in its transaction",
    "integrations/nanobot.py update_metadata": "changes metadata, which are not in the index",
    "integrations/pydantic_ai/saving.py run": "a step of `_write_record`",
    "integrations/pydantic_ai/saving.py _quickly": "a step of `run`",
    "integrations/pydantic_ai/saving.py delete": "a step of `_delete_record`",
}


def lenders_to_write(path: Path) -> Iterator[str]:
    """Functions that lend a connection to write, and are not done again without a damaged index."""
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef) or "despite_index" in map(ast.unparse, function.decorator_list):
            continue
        called = [ast.unparse(each.func) for each in ast.walk(function) if isinstance(each, ast.Call)]
        if any(each.endswith(("access.transaction", "access.single_write")) for each in called):
            yield f"{path.relative_to(PACKAGE).as_posix()} {function.name}"


def test_who_writes_beside_the_verbs_sees_to_a_damaged_index_or_has_a_reason() -> None:
    paths = [path for room in ABOVE_THE_VERBS for path in (PACKAGE / room).rglob("*.py")]
    assert {each for path in paths for each in lenders_to_write(path)} == WITHOUT_CARE_FOR_THE_INDEX.keys()


# A difference between databases is a named method of a dialect, which says why.


def test_nothing_is_decided_by_the_name_of_a_dialect_outside_of_the_dialects() -> None:
    paths = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "dialect"]
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
        for room in ("operations", "integrations")
        for path in (PACKAGE / room).rglob("*.py")
        for line in path.read_text().splitlines()
        if by_hand.search(line)
    }
    assert found == set()
