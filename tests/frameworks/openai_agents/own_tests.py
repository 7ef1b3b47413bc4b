"""Run the framework's own tests of its SQL sessions with other sessions in their place.

    python tests/frameworks/openai_agents/own_tests.py

These are `LangoSession`, on SQLite and PostgreSQL, and the framework's `OpenAIConversationsSession` with a server of
`lango_store.web.conversations`. pip downloads the source distribution of the installed version and checks its digest.
Tests of private members, tables or statements of the framework's classes are left out. So are the framework's tests of
`OpenAIConversationsSession` itself: they replace the client with a mock, and send no request.
"""

import ast
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve()
REPOSITORY: Final = HERE.parents[3]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests")]

from sqlalchemy import create_engine, make_url, text  # noqa: E402
from starlette.applications import Starlette  # noqa: E402
from starlette.routing import Mount  # noqa: E402
from support.conversations_api import named  # noqa: E402
from support.http_server import serving  # noqa: E402
from support.postgres_server import PostgresServer  # noqa: E402

from lango_store import AsyncStore, schema  # noqa: E402
from lango_store.web import conversations  # noqa: E402

DIGESTS: Final = {
    "0.21.0": "79c6ac2b8e7cb01f9cda6a565131577f67b849b6cc0bc7cfedfb9c3df3195d8f",
    "0.24.0": "4b4b285f4fed81fdf1b4ac426a9101658d9cd29b4fb1aaeee18f639b77e704e3",
}
FILES: Final = (
    "tests/memory/test_session.py",
    "tests/memory/test_session_limit.py",
    "tests/extensions/memory/test_sqlalchemy_session.py",
)
FEWEST: Final = 71
FEWEST_OF_API: Final = 68
THEIR_WORDS: Final = "test_sqlite_session_closed_rejects_empty_add_items"
"""The test that wants an error to name the framework's own class."""

A_LOCKED_FILE: Final = "test_add_items_waits_for_transient_sqlite_write_lock"
"""The test of a lock that PostgreSQL does not have."""

NOT_OF_THE_API: Final = {
    "A session over HTTP has nothing to close.": ["test_sqlite_session_closed_rejects_empty_add_items"],
    "Its sessions have no engine of SQLAlchemy.": [
        "test_add_items_waits_for_transient_sqlite_write_lock",
        "test_add_items_concurrent_first_access_across_from_url_sessions",
        "test_add_items_concurrent_first_access_across_from_url_sessions_cross_loop",
        "test_engine_property_from_url",
        "test_engine_property_from_external_engine",
        "test_engine_property_is_read_only",
    ],
    "The locks of `OpenAIConversationsSession` belong to one event loop.": [
        "test_sqlite_session_concurrent_access",
        "test_add_items_concurrent_first_access_with_shared_session_cross_loop",
    ],
    "Its `pop_item` reads the last item, and then deletes it: two sessions read the same.": [
        "test_concurrent_pop_item_returns_each_row_once",
    ],
}

_NAMES_OF_THEIRS: Final = re.compile(r"_[a-z_]+|before_cursor_execute|.*\bagent_(sessions|messages)\b.*", re.DOTALL)


def sources(folder: Path) -> Path:
    """Download and unpack the source distribution of the installed version, and return its folder."""
    wanted = version("openai-agents")
    if wanted not in DIGESTS:
        sys.exit(f"openai-agents {wanted}: put the digest of its source distribution into {HERE.name}")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "openai-agents"]
    subprocess.run([*pip, "--dest", str(folder), f"openai-agents=={wanted}"], check=True)
    (archive,) = folder.glob("openai_agents-*.tar.gz")
    if (found := hashlib.sha256(archive.read_bytes()).hexdigest()) != DIGESTS[wanted]:
        sys.exit(f"{archive.name} has the digest {found}, not {DIGESTS[wanted]}: it is not what was tested")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def left_out(file: Path) -> list[str]:
    """Return the tests of a file that only apply to the framework's own classes."""
    body = ast.parse(file.read_text()).body
    tests = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [test.name for test in tests if test.name.startswith("test_") and any(map(_is_private, ast.walk(test)))]


def _is_private(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return re.match(r"_(?!_)", node.attr) is not None
    if isinstance(node, ast.Name):
        return node.id == "_await_mutation"
    text_of_code = isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value
    return text_of_code and _NAMES_OF_THEIRS.fullmatch(node.value) is not None  # type: ignore[attr-defined]


def run(folder: Path, kind: str, url: str, others: Sequence[str], fewest: int = FEWEST) -> None:
    """Run the tests, without those that are named; exit if one fails, or if fewer tests run than expected."""
    skipped = [f"--deselect={file}::{name}" for file in FILES for name in (*left_out(folder / file), *others)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(HERE.parent), str(folder)]),
        "OWN_TESTS_URL": url,
        "OPENAI_API_KEY": "none",
    }
    options = ["-q", "-p", "own_tests_plugin", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestConfigWarning"]
    report = folder / f"{kind}.xml"
    command = [sys.executable, "-m", "pytest", *options, "--timeout=120", f"--junit-xml={report}", *skipped, *FILES]
    failed = subprocess.run(command, cwd=folder, env=environment).returncode
    found = re.search(r'tests="(\d+)"', report.read_text()) if report.exists() else None
    count, outcome = int(found[1]) if found else 0, f"exit code {failed}" if failed else "passed"
    print(f"openai-agents {version('openai-agents')} on {kind}: {count} of its own tests, {outcome}", flush=True)
    if failed or count < fewest:
        sys.exit(1)


def run_with_api(folder: Path) -> None:
    """Run the tests with `OpenAIConversationsSession` and a server of the API, and print which cannot pass."""
    url = f"sqlite:///{folder}/conversations.db"
    schema.upgrade(url)
    app = Starlette(routes=[Mount("/v1", conversations(AsyncStore(url), user=named))])
    others = [name for names in NOT_OF_THE_API.values() for name in names]
    with serving(app) as port:
        run(folder, "the Conversations API", f"http://127.0.0.1:{port}/v1", others, FEWEST_OF_API)
    private = sum(len(left_out(folder / file)) for file in FILES)
    print(f"  left out: {private}. They use private members, tables or statements of other sessions.")
    for reason, names in NOT_OF_THE_API.items():
        print(f"  left out: {len(names)}. {reason}", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = sources(Path(temporary))
        run(folder, "SQLite", "", [THEIR_WORDS])
        run_with_api(folder)
        given = os.environ.get("LANGO_STORE_TEST_POSTGRES")
        server: Any = None if given else PostgresServer()
        name = f"own_tests_{os.getpid()}"
        there = make_url(given or server.url()).set(drivername="postgresql+psycopg")
        administrator = create_engine(there, isolation_level="AUTOCOMMIT")
        try:
            with administrator.connect() as connection:
                connection.execute(text(f"CREATE DATABASE {name}"))
            url = there.set(database=name).render_as_string(hide_password=False)
            schema.upgrade(url)
            run(folder, "PostgreSQL", url, [THEIR_WORDS, A_LOCKED_FILE])
        finally:
            with administrator.connect() as connection:
                connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
            administrator.dispose()
            if server is not None:
                server.stop()


if __name__ == "__main__":
    main()
