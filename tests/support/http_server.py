"""An ASGI application in a real server, in a thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from support.polling import until


@contextmanager
def serving(app: Any) -> Iterator[int]:
    """Serve an application, and yield its port."""
    config = uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
