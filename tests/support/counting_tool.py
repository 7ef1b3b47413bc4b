"""A tool with an HTTP interface that counts how often it ran, for several processes."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class CountingTool(ThreadingHTTPServer):
    """Runs at POST /<anything>, and answers with a JSON text that names the run.

    Attributes:
        requests: The number of requests by the header `Idempotency-Key`.
        runs: The number of runs by this header. If the tool honors the header, a repeated request is not a run.
    """

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, *, honors_key: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.honors_key = honors_key
        self.requests: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self._results: dict[str, str] = {}
        self._lock = threading.Lock()
        self._received = threading.Semaphore(0)
        self._answers = threading.Event()
        self._answers.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @contextmanager
    def without_answers(self) -> Iterator[threading.Semaphore]:
        """Run, but do not answer before the end of the block; the semaphore counts the requests in the block."""
        self._received = threading.Semaphore(0)
        self._answers.clear()
        try:
            yield self._received
        finally:
            self._answers.set()

    def run(self, path: str, key: str) -> str:
        with self._lock:
            self.requests[key] += 1
            if not (self.honors_key and key in self._results):
                self.runs[key] += 1
                self._results[key] = f"run {self.runs[key]} of {path}"
            result = self._results[key]
        self._received.release()
        assert self._answers.wait(60)
        return result


class _Handler(BaseHTTPRequestHandler):
    server: CountingTool

    def do_POST(self) -> None:
        body = json.dumps(self.server.run(self.path, self.headers["Idempotency-Key"])).encode()
        try:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            """The process that sent the request was killed."""

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def counting_tool(*, honors_key: bool = False) -> Iterator[CountingTool]:
    with CountingTool(honors_key=honors_key) as tool:
        serving = threading.Thread(target=tool.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield tool
        finally:
            tool.shutdown()
            serving.join()
