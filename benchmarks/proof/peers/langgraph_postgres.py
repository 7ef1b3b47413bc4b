"""langgraph: the graph of `langgraph`, whose threads `PostgresSaver` stores."""

from __future__ import annotations

import sqlalchemy as sa
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg import Connection
from psycopg.rows import dict_row

from benchmarks.proof.peers.langgraph import Threads


class PostgresThreads(Threads):
    """`PostgresSaver` on one connection, with the options that its documentation requires."""

    def __init__(self, url: str) -> None:
        text = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        saver = PostgresSaver(Connection.connect(text, autocommit=True, prepare_threshold=0, row_factory=dict_row))
        saver.setup()
        self._compile(saver)
