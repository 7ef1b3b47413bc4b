"""Fixtures for tests in headless Chromium. `make browser` runs them."""

import html
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

RunScript = Callable[..., str]
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--no-first-run",
    "--allow-file-access-from-files",  # a page may read the frames that it opens
    "--window-size=1280,900",
    "--virtual-time-budget=20000",
    "--dump-dom",
)


def browser() -> str:
    """Return the path of Chromium, or raise an error that says how to install it."""
    configured = os.environ.get("LANGO_STORE_TEST_CHROMIUM")
    program = configured or next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        raise RuntimeError(
            "these tests need Chromium: `apt-get install chromium`, or name one in LANGO_STORE_TEST_CHROMIUM"
        )
    return program


def open_page(url: str, profile: Path, *, dark: bool = False) -> str:
    """Open a page, and return the text that its script wrote between BEGIN and END."""
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    command = [browser(), *_OPTIONS, scheme, f"--user-data-dir={profile}", url]
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
