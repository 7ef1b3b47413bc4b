"""A relay between one worker and the PostgreSQL server, which makes the worker fail at a packet."""

import os
import signal
import socket
import threading
from contextlib import suppress

import sqlalchemy as sa


class Proxy:
    """Forwards packets in both directions, and counts them. The packet at which a fault happens is not forwarded.

    "kill" kills the worker, "stop" stops it, and "cut" closes its connection.
    """

    def __init__(self, url: str) -> None:
        self._server = f"{sa.make_url(url).query['host']}/.s.PGSQL.5432"
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._port: int = self._listening.getsockname()[1]
        self._lock = threading.Lock()
        self._kind, self._left, self._pid = "", 0, 0
        self.stopped, self._continued = threading.Event(), threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, url: str) -> str:
        """Return the URL of a database through this relay."""
        parsed = sa.make_url(url).difference_update_query(["host"]).set(host="127.0.0.1", port=self._port)
        return parsed.render_as_string(hide_password=False)

    def arm(self, kind: str, at: int, pid: int) -> None:
        """Let a fault happen at a packet; without a kind, at none."""
        self.stopped.clear()
        self._continued.clear()
        with self._lock:
            self._kind, self._left, self._pid = kind, at, pid

    def go_on(self) -> None:
        """Forward the packet at which the worker was stopped."""
        self._continued.set()

    def _accept(self) -> None:
        while True:
            client, _ = self._listening.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if (kind := self._count()) == "stop":
                    os.kill(self._pid, signal.SIGSTOP)
                    self.stopped.set()
                    self._continued.wait()
                elif kind:
                    if kind == "kill":
                        os.kill(self._pid, signal.SIGKILL)
                    break
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _count(self) -> str:
        with self._lock:
            self._left -= 1
            return self._kind if self._left == 0 else ""
