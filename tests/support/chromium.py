"""Chromium with several tabs, driven through the pipe of its DevTools protocol."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--no-first-run",
    "--window-size=1280,900",
)


def program() -> str:
    """Return the path of Chromium, or raise an error that says how to install it."""
    configured = os.environ.get("LANGO_STORE_TEST_CHROMIUM")
    path = configured or next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        raise RuntimeError(
            "these tests need Chromium: `apt-get install chromium`, or name one in LANGO_STORE_TEST_CHROMIUM"
        )
    return path


class Browser:
    """A running browser."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = os.fdopen(reading, "rb"), os.fdopen(writing, "wb")
        self._ids = count(1)
        self._buffer = b""
        self._context: dict[str, str] = {}

    @contextmanager
    def new_context(self) -> Iterator[None]:
        """Open tabs without the data and the other tabs of earlier tests, and close them at the end of the block."""
        self._context = {"browserContextId": self.call("Target.createBrowserContext")["browserContextId"]}
        try:
            yield
        finally:
            self.call("Target.disposeBrowserContext", **self._context)
            self._context = {}

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        id = next(self._ids)
        request = {"id": id, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        self._writing.write(json.dumps(request).encode() + b"\0")
        self._writing.flush()
        while (answer := self._receive()).get("id") != id:
            pass  # an event
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._reading.fileno(), 65_536)
            assert part, "the browser has ended"
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def open_tab(self, url: str) -> "Tab":
        """Open a page in a new tab."""
        target = self.call("Target.createTarget", url="about:blank", **self._context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.navigate", session, url=url)  # returns when the page has replaced the empty one
        return Tab(self, session)

    def close(self) -> None:
        self._writing.close()
        self._reading.close()


class Tab:
    """A tab of a browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; promises are awaited."""
        options = {"awaitPromise": True, "returnByValue": True}
        answer = self._browser.call("Runtime.evaluate", self._session, expression=expression, **options)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def reload(self) -> None:
        """Reload the page."""
        self._browser.call("Page.reload", self._session)


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Start a browser, and end it at the end of the block."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    options = [*OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
    # The browser reads from descriptor 3, and writes to 4.
    script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    command = ["/bin/bash", "-c", script, program(), *options]
    process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL)
    os.close(theirs_in)
    os.close(theirs_out)
    browser = Browser(ours_in, ours_out)
    try:
        yield browser
    finally:
        browser.close()
        process.terminate()
        process.wait(30)
