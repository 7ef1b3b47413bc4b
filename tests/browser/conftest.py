"""Fixtures for tests in headless Chromium. `make browser` runs them."""

import html
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.chromium import OPTIONS, Browser, open_browser, program
from support.paths import ROOT

RunScript = Callable[..., str]
_OPTIONS = (
    *OPTIONS,
    "--allow-file-access-from-files",  # a page may read the frames that it opens
    "--virtual-time-budget=20000",
    "--dump-dom",
)


def open_page(url: str, profile: Path, *, dark: bool = False) -> str:
    """Open a page, and return the text that its script wrote between BEGIN and END."""
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    command = [program(), *_OPTIONS, scheme, f"--user-data-dir={profile}", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    result = re.search(r"<pre>BEGIN(.*?)END</pre>", done.stdout, re.DOTALL)
    assert result, done.stderr
    return html.unescape(result[1])


def script_element(script: str) -> str:
    """Return a script element that writes the result of a script between BEGIN and END."""
    return (
        "<script>addEventListener('load', async () => { const output = document.createElement('pre');"
        f"output.textContent = 'BEGIN' + (await (async () => {{ {script} }})()) + 'END';"
        "document.body.appendChild(output) })</script>"
    )


@pytest.fixture
def run_script(tmp_path: Path) -> RunScript:
    """Open a document in the browser, run a script in it, and return the script's result as text."""

    def run_script(document: str, script: str, *, dark: bool = False, folder: Path = tmp_path) -> str:
        # Without the policy of the page, the script of the test may run.
        document = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", document)
        page = folder / "page.html"
        page.write_text(document.replace("</body>", f"{script_element(script)}</body>"), encoding="utf-8")
        return open_page(page.as_uri(), tmp_path / "profile", dark=dark)

    return run_script


@pytest.fixture(scope="session")
def front_end(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the folder with the packages of npm."""
    folder = Path(os.environ.get("LANGO_STORE_TEST_NODE_MODULES", "") or tmp_path_factory.mktemp("front_end"))
    shutil.copytree(ROOT / "tests/browser/front_end", folder, dirs_exist_ok=True)
    if not (folder / "node_modules/assistant-stream").exists():
        subprocess.run(["npm", "install", "--no-audit", "--no-fund"], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return the browser of all tests, because it takes half a second to start."""
    with open_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """Return a browser without tabs and data."""
    with chromium.new_context():
        yield chromium
