"""The connection pool: order of waiting threads."""

import threading

import pytest
import sqlalchemy as sa
from support.locks import wait_for_waiters

from lango_store import create_engine


def test_free_connection_goes_to_the_thread_that_has_waited_longest(url: str) -> None:
    engine = create_engine(url, pool_size=1)
    order: list[object] = []

    def take(name: object) -> None:
        with engine.connect():
            order.append(name)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(3)]
    with engine.connect():
        for number, thread in enumerate(threads, 1):
            thread.start()
            wait_for_waiters(engine, number)
    take("the thread that gave it back")
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, "the thread that gave it back"]
    engine.dispose()


def test_connection_is_returned_to_the_pool_although_a_waiting_thread_gave_up(url: str) -> None:
    engine = create_engine(url, pool_size=1, pool_timeout=0.01)
    for _ in range(3):
        with engine.connect(), pytest.raises(sa.exc.TimeoutError):
            engine.connect()
    assert engine.pool.checkedin() == 1  # type: ignore[attr-defined]
    engine.dispose()
