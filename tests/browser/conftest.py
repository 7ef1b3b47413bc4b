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


@pytest.fixture
def run_script(tmp_path: Path) -> RunScript:
    """Open a document in the browser, run a script in it, and return the script's result as text."""

    def run_script(document: str, script: str, *, dark: bool = False) -> str:
        # Without the policy of the page, the script of the test may run.
        document = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", document)
        probe = (
            "<script>addEventListener('load', async () => { const output = document.createElement('pre');"
            f"output.textContent = 'BEGIN' + (await (async () => {{ {script} }})()) + 'END';"
            "document.body.appendChild(output) })</script>"
        )
        page = tmp_path / "page.html"
        page.write_text(document.replace("</body>", f"{probe}</body>"), encoding="utf-8")
        scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        command = [browser(), *_OPTIONS, scheme, profile, page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        result = re.search(r"<pre>BEGIN(.*?)END</pre>", done.stdout, re.DOTALL)
        assert result, done.stderr
        return html.unescape(result[1])

    return run_script
