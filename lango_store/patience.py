"""Connections to PostgreSQL that wait for no answer much longer than the server may take for it.

TCP tells of a machine that is gone. Of a server that stopped on a machine that runs it tells nothing: there its end of
the connection goes on to acknowledge what it receives.
"""

from __future__ import annotations

from collections.abc import Generator
from time import monotonic
from typing import Any

import psycopg


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed when no answer comes for `patience` seconds; None is without end."""

    patience: float | None = None

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """Wait as psycopg does, which asks what it waits for ten times a second."""
        return super().wait(gen if self.patience is None else self._bounded(gen, self.patience), *arguments, **options)

    def _bounded(self, gen: Generator[Any, Any, Any], patience: float) -> Generator[Any, Any, Any]:
        deadline = monotonic() + patience
        ready = None
        while True:
            try:
                wanted = gen.send(ready)
            except StopIteration as end:
                return end.value
            ready = yield wanted
            if not ready and monotonic() > deadline:
                self.pgconn.finish()  # to cancel would be to wait again, for the same server
                raise psycopg.OperationalError(
                    f"no answer for {patience:.1f} s, though statement_timeout is shorter: the connection was closed"
                )
