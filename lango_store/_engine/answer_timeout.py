"""Connections to PostgreSQL that wait for no answer much longer than the server may take for it.

TCP tells of a machine that is gone. Of a server that stopped on a machine that runs it tells nothing: there its end of
the connection goes on to acknowledge what it receives.
"""

from __future__ import annotations

import selectors
from collections.abc import Generator
from time import monotonic
from typing import Any

import psycopg


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed when no answer comes for `patience` seconds; None is without end."""

    patience: float | None = None

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """Wait as psycopg does, which on an interruption cancels what the server does."""
        return super().wait(gen if self.patience is None else self._bounded(gen, self.patience), *arguments, **options)

    def _bounded(self, gen: Generator[Any, Any, Any], patience: float) -> Generator[Any, Any, Any]:
        # It waits here and yields nothing: psycopg 3.2 comes back to a generator only when the server answers.
        deadline = monotonic() + patience
        with selectors.DefaultSelector() as selector:
            try:
                wanted = next(gen)
                selector.register(self.pgconn.socket, wanted)
                while True:
                    ready = selector.select(max(0.0, deadline - monotonic()))
                    if not ready and monotonic() > deadline:
                        break
                    wanted = gen.send(ready[0][1] if ready else 0)
                    selector.modify(self.pgconn.socket, wanted)
            except StopIteration as end:
                return end.value
        self.pgconn.finish()  # to cancel would be to wait again, for the same server
        raise psycopg.OperationalError(
            f"no answer for {patience:.1f} s, though statement_timeout is shorter: the connection was closed"
        )
        yield  # a generator, as psycopg asks for
