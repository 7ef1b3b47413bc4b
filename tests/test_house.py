"""What holds for the files of the package as they are written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "lango_store"

LONGEST = 350

LONGER = {
    "store.py": "verbs with their docstrings, each a few lines of code: in two files they would be looked for twice",
    "conversation.py": "the same, for one session",
}


TESTS = Path(__file__).parent

LONGEST_OF_TESTS = 420


def longer_than(most: int, folder: Path) -> set[str]:
    """The files of a folder with more lines."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")}
    return {name for name, path in paths.items() if len(path.read_text().splitlines()) > most}


def test_a_file_is_short_or_its_length_has_a_reason() -> None:
    assert longer_than(LONGEST, PACKAGE) == LONGER.keys()


def test_a_file_of_tests_is_short() -> None:
    assert longer_than(LONGEST_OF_TESTS, TESTS) == set()


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


# What a module keeps to itself begins with an underscore, and others ask for it by a name that does not.

PRIVATE_TO_OTHERS = {
    "pool.py _invalidate": "SQLAlchemy: what it does itself with a lost connection; invalidate() closes only the one",
    "threads.py _max_overflow": "SQLAlchemy: a pool tells its size, not how far beyond it goes",
    "schema/__init__.py _upgrade_revs": "Alembic: what its commands do, without their files and globals",
    "schema/__init__.py _downgrade_revs": "Alembic: the same",
    "schema/__init__.py _stamp_revs": "Alembic: the same",
    "integrations/google_adk/service.py _stale_session_error": "google-adk: where its error is",
    "integrations/nanobot.py _message_preview_text": "nanobot: lists look like its own, whose version is pinned",
    "integrations/nanobot.py _metadata_title": "nanobot: the same",
    "encoding.py _value_": "enum: documented; `value` is computed at each call",
}

DOCUMENTED = {"_fields", "_replace"}
"""What a named tuple calls so, for no other name to be in the way."""


def private_names(path: Path) -> Iterator[str]:
    """What a file uses by a private name that it does not define, and that is not of an object's own class."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    own = {each.name for each in nodes if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    own |= {each.attr for each in nodes if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)}
    own |= {each.target.id for each in nodes if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)}
    for each in nodes:
        if isinstance(each, ast.Attribute) and not (isinstance(each.value, ast.Name) and each.value.id == "self"):
            yield from {each.attr} - own
        elif isinstance(each, ast.ImportFrom):
            yield from [*(each.module or "").split("."), *(name.name for name in each.names)]


def test_a_private_name_of_another_module_is_used_for_a_reason_only() -> None:
    found = {
        f"{path.relative_to(PACKAGE).as_posix()} {name}"
        for path in PACKAGE.rglob("*.py")
        for name in private_names(path)
        if re.match(r"_[a-z]", name) and name not in DOCUMENTED
    }
    assert found == PRIVATE_TO_OTHERS.keys()
