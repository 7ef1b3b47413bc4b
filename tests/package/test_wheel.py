"""The wheel and the sdist: contents, metadata, and an installation without the checkout."""

import fcntl
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from support.databases import MakeDatabase
from support.paths import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build once per test run, even with several workers."""
    run = tmp_path_factory.getbasetemp()
    folder = (run if "PYTEST_XDIST_WORKER" not in os.environ else run.parent) / "dist"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob("*.whl")):
            command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
    return folder


def test_sdist_holds_migrations_tests_and_metadata(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"alembic.ini", "migrations/env.py", "lango_store/py.typed", "README.md", "LICENSE", "Makefile"} <= names
    assert "tests/conftest.py" in names


def test_installed_wheel_migrates_and_stores(
    distributions: Path, tmp_path: Path, make_postgres: MakeDatabase, make_sqlite: MakeDatabase
) -> None:
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    pages = {f"lango_store/web/static/{name}" for name in ("chat.html", "chat.css", "chat.js", "demo.js")}
    assert {"lango_store/migrations/env.py", "lango_store/py.typed"} | pages <= set(names)
    assert all(name.startswith(("lango_store/", "lango_store-")) for name in names)
    extras = {"asyncio", "otel", "postgresql", "sqlite", "web"}
    extras |= {"claude-agent-sdk", "google-adk", "langchain", "langgraph", "nanobot", "openai-agents", "pydantic-ai"}
    assert set(re.findall(r"^Provides-Extra: (\S+)$", metadata, re.M)) == extras
    assert (
        re.findall(r"^Requires-Dist: psycopg(.*)$", metadata, re.M)[0][0] != "["
    )  # psycopg's author advises against the binary extra

    # An empty environment that borrows the installed dependencies, but not this checkout.
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    site = next((tmp_path / "env" / "lib").glob("python*")) / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = tmp_path / "env" / "bin" / "python"
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    urls = make_postgres(migrated=False), make_sqlite(migrated=False)
    environment = inherited | {"LANGO_STORE_URL": urls[0]}

    def run(*words: str) -> str:
        completed = subprocess.run(
            [python, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    assert run("-m", "lango_store.cli", "db", "upgrade").startswith("at revision")
    program = """
import sys, lango_store
from lango_store import Message, Store, UnknownFeature, schema
print(lango_store.__file__)
schema.upgrade(sys.argv[2])
for url in sys.argv[1:]:
    with Store(url) as store:
        store.create("k", messages=[Message.user("hi")])
        print(schema.check(url), store.get("k").messages[0].content)
        with store.engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO lango_feature (name) VALUES ('moods')")
        for refused in (store.ping, Store(url).count):
            try:
                refused()
            except UnknownFeature as error:
                print(error)
"""
    module_path, *rest = run("-c", program, *urls).splitlines()
    assert module_path.startswith(str(site))
    refused = "the database uses moods, which this release does not know: upgrade lango-store"
    assert rest == ["[] hi", refused, refused] * 2
