"""A relay between clients and servers that can lose data and connections."""

import socket
import threading

import sqlalchemy as sa


class Relay:
    """A relay between clients and a server that can drop connections silently, so that only a sender notices."""

    def __init__(self, server: sa.URL) -> None:
        self._server = server
        self._forgotten: set[socket.socket] = set()
        self._refusing = False
        self._cut: bytes | None = None
        self._going_on = threading.Event()
        self._going_on.set()
        self._open: list[socket.socket] = []
        self._servers: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def url(self, url: str, **parameters: str) -> sa.URL:
        """Return the TCP URL of a database through this relay."""
        there = sa.make_url(url).difference_update_query(["host"]).set(host="127.0.0.1", port=self.port)
        return there.update_query_dict({"sslmode": "disable"} | parameters)  # `lose` reads the answers

    def lead_to(self, server: sa.URL) -> None:
        """Connect new clients to another server, as after a DNS change."""
        self._server = server

    def forget(self) -> None:
        """Silence the open connections, and cut each off as soon as it sends."""
        self._forgotten.update(self._open)

    def refuse(self) -> None:
        """Close the open connections, and refuse new ones."""
        self._refusing = True
        for each in self._open:
            _end(each)

    def admit(self) -> None:
        """Undo `refuse`."""
        self._refusing = False

    def lose(self, answer: bytes) -> None:
        """Disconnect one client before it gets an answer with these bytes, after the server has done the work."""
        self._cut = answer

    def stall(self) -> None:
        """Forward nothing, and later accept nothing either, but keep connections open."""
        self._going_on.clear()

    def go_on(self) -> None:
        """Undo `stall`."""
        self._going_on.set()

    def close(self) -> None:
        """Close everything."""
        self.go_on()
        self._listening.shutdown(socket.SHUT_RDWR)
        for each in [self._listening, *self._open]:
            _end(each)
        for thread in self._threads:
            thread.join(20)
        for each in [self._listening, *self._open]:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            server = self._connected()
            self._open += [client, server]
            self._servers.add(server)
            for source, target in ((client, server), (server, client)):
                self._threads.append(threading.Thread(target=self._pump, args=(source, target)))
                self._threads[-1].start()

    def _connected(self) -> socket.socket:
        host = str(self._server.query.get("host", self._server.host or "127.0.0.1"))
        port = self._server.port or 5432
        if host.startswith("/"):
            made = socket.socket(socket.AF_UNIX)
            made.connect(f"{host}/.s.PGSQL.{port}")
            return made
        return socket.create_connection((host, port))

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                self._going_on.wait()
                if source in self._forgotten:
                    break
                if self._cut is not None and source in self._servers and self._cut in data:
                    self._cut = None
                    break
                target.sendall(data)
        except OSError:
            pass  # the other pump or close() ended it
        _end(source)
        _end(target)


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # ended already
