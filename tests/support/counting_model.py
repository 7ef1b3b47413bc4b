"""A model with an HTTP interface that counts its calls, for several processes."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class CountingModel(ThreadingHTTPServer):
    """Answers GET /<turn id> with a text that contains the turn id and the number of the call for this turn."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.calls: Counter[str] = Counter()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, turn_id: str) -> str:
        with self.lock:
            self.calls[turn_id] += 1
            return f"answer {self.calls[turn_id]} to {turn_id}"


class _Handler(BaseHTTPRequestHandler):
    server: CountingModel

    def do_GET(self) -> None:
        body = self.server.answer(self.path.removeprefix("/")).encode()
        with suppress(BrokenPipeError, ConnectionResetError):  # the process was killed
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def counting_model() -> Iterator[CountingModel]:
    with CountingModel() as model:
        serving = threading.Thread(target=model.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield model
        finally:
            model.shutdown()
            serving.join()
