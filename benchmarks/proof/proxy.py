"""A relay between one worker and the PostgreSQL server, which makes the worker fail at a step."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import sqlalchemy as sa

_READY = b"Z\0\0\0\5"
"""The end of an answer, before its last byte."""


class Proxy:
    """Forwards packets in both directions. The packet at which a fault happens is not forwarded.

    Odd steps are messages of the client that execute or commit something, even steps are answers of the server. They
    are counted separately, because their order varies if the client does not wait for each answer. "kill" kills the
    worker, "stop" stops it, and "cut" closes its connection.
    """

    def __init__(self, url: str) -> None:
        self._server = f"{sa.make_url(url).query['host']}/.s.PGSQL.5432"
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._port: int = self._listening.getsockname()[1]
        self._kind, self._pid = "", 0
        self._left = [0, 0]
        self.stopped, self._continued = threading.Event(), threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, url: str) -> str:
        """Return the URL of a database through this relay."""
        parsed = sa.make_url(url).difference_update_query(["host"]).set(host="127.0.0.1", port=self._port)
        return parsed.render_as_string(hide_password=False)

    def arm(self, kind: str, at: int, pid: int) -> None:
        """Choose the step at which a fault happens; without a kind, or for steps below 1, none does."""
        self.stopped.clear()
        self._continued.clear()
        self._left = [(at + 1) // 2 * (at % 2), at // 2 * (1 - at % 2)]
        self._kind, self._pid = kind, pid

    def go_on(self) -> None:
        """Forward the packet at which the worker was stopped."""
        self._continued.set()

    def _accept(self) -> None:
        while True:
            client, _ = self._listening.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            for side, (source, target) in enumerate(((client, server), (server, client))):
                threading.Thread(target=self._pump, args=(side, source, target), daemon=True).start()

    def _pump(self, side: int, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            for packet in (_answers if side else _messages)(source):
                if packet[-6:-1] == _READY if side else packet[:1] in (b"Q", b"E", b"S"):
                    self._left[side] -= 1
                    if self._left[side] == 0 and self._happens() in ("kill", "cut"):
                        break
                target.sendall(packet)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _happens(self) -> str:
        if self._kind == "stop":
            os.kill(self._pid, signal.SIGSTOP)
            self.stopped.set()
            self._continued.wait()
        elif self._kind == "kill":
            os.kill(self._pid, signal.SIGKILL)
        return self._kind


def _answers(source: socket.socket) -> Iterator[bytes]:
    while data := source.recv(65_536):
        yield data


def _messages(source: socket.socket) -> Iterator[bytes]:
    buffer = b""
    for data in _answers(source):
        buffer += data
        while len(buffer) >= 5:
            start = int(buffer[0] != 0)  # the first messages of a connection have no type
            size = start + int.from_bytes(buffer[start : start + 4], "big")
            if len(buffer) < size:
                break
            yield buffer[:size]
            buffer = buffer[size:]
