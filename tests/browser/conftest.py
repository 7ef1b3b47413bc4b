"""A real browser: Chromium without a window. `make browser` runs these tests."""

import html
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Look = Callable[..., str]
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
    """Return the program; an error that says how to get one if there is none."""
    given = os.environ.get("LANGO_STORE_TEST_CHROMIUM")
    found = given or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        raise RuntimeError(
            "these tests need Chromium: `apt-get install chromium`, or name one in LANGO_STORE_TEST_CHROMIUM"
        )
    return found


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Open a document, run a script in it, and return what the script returns as text."""

    def look(document: str, script: str, *, dark: bool = False) -> str:
        own = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", document)  # the test's script is run
        probe = (
            "<script>addEventListener('load', async () => { const said = document.createElement('pre');"
            f"said.textContent = 'BEGIN' + (await (async () => {{ {script} }})()) + 'END';"
            "document.body.appendChild(said) })</script>"
        )
        page = tmp_path / "page.html"
        page.write_text(own.replace("</body>", f"{probe}</body>"), encoding="utf-8")
        scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        command = [browser(), *_OPTIONS, scheme, profile, page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        found = re.search(r"<pre>BEGIN(.*?)END</pre>", done.stdout, re.DOTALL)
        assert found, done.stderr
        return html.unescape(found[1])

    return look
