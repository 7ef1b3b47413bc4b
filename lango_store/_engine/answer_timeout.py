"""Connections to PostgreSQL with a timeout for each answer of the server.

TCP detects a machine that is gone, but not a server that hangs while its machine still acknowledges packets.
"""

import selectors
from collections.abc import Generator
from time import monotonic
from typing import Any

import psycopg


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed if the server does not answer for `answer_timeout` seconds; None for no limit."""

    answer_timeout: float | None = None

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """Wait for an answer; as usual in psycopg, an interruption of the wait cancels the statement."""
        bounded = gen if self.answer_timeout is None else self._bounded(gen, self.answer_timeout)
        return super().wait(bounded, *arguments, **options)

    def _bounded(self, gen: Generator[Any, Any, Any], timeout: float) -> Generator[Any, Any, Any]:
        # Wait here instead of yielding: psycopg 3.2 resumes a generator only when the server answers.
        deadline = monotonic() + timeout
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
        self.pgconn.finish()  # a cancel request would wait for the same server
        raise psycopg.OperationalError(
            f"no answer for {timeout:.1f} s, though statement_timeout is shorter: the connection was closed"
        )
        yield  # makes this function a generator, which psycopg requires
