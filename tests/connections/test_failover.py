"""Failover of PostgreSQL servers: errors that callers see, and recovery."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Final, NamedTuple

import pytest
import sqlalchemy as sa
from support.factories import message
from support.postgres_server import PostgresServer
from support.relay import Relay
from support.writers import Writers

from lango_store import DatabaseUnavailable, Store, create_engine, schema

pytestmark = pytest.mark.slow

ROUNDS: Final = int(os.environ.get("LANGO_STORE_FAILOVER_ROUNDS", "1"))


class Pair(NamedTuple):
    """A primary with our tables, and its standby."""

    primary: PostgresServer
    standby: PostgresServer

    @property
    def url(self) -> str:
        """A URL that names both servers and selects the writable one."""
        hosts = "&".join(f"host={each.folder}" for each in self)
        return f"postgresql://postgres@/postgres?{hosts}&target_session_attrs=read-write"

    def hand_over(self) -> None:
        """Promote the standby and make the old primary read-only."""
        self.primary.demote()
        self.standby.follow(self.primary)
        self.standby.promote()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        primary = PostgresServer(replicated=True)
        stack.callback(primary.stop)
        schema.upgrade(primary.url())
        standby = PostgresServer(standby_of=primary)
        stack.callback(standby.stop)
        yield Pair(primary, standby)


def connect_several(engine: sa.Engine) -> None:
    """Open several connections and return them to the pool."""
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(engine.connect())


@pytest.mark.parametrize("whose", ["ours", "stock"])
def test_all_connections_to_a_demoted_primary_are_discarded(pair: Pair, whose: str) -> None:
    engine = create_engine(pair.url) if whose == "ours" else sa.create_engine(create_engine(pair.url).url)
    with Store(engine) as store:
        store.create("k")
        connect_several(engine)
        pair.hand_over()
        with pytest.raises(DatabaseUnavailable, match="takes no writes: try again"):
            store.append_message("k", message("refused"))
        connect_several(engine)
        with ExitStack() as stack:
            for _ in range(4):
                connection = stack.enter_context(engine.connect())
                store.using(connection).append_message("k", message("there"))
                connection.commit()
        assert [m.content for m in store.get("k").messages] == ["there"] * 4
    engine.dispose()


def test_store_reconnects_when_its_address_leads_to_the_primary_again(pair: Pair) -> None:
    primary, standby = (sa.make_url(each.url()) for each in pair)
    relay = Relay(primary)
    try:
        with Store(primary.set(host="127.0.0.1", port=relay.port, query={})) as store:
            store.create("k")
            store.engine.dispose()
            pair.standby.follow(pair.primary)
            relay.lead_to(standby)
            connect_several(store.engine)
            with pytest.raises(DatabaseUnavailable, match="takes no writes"):
                store.conversation("k").truncate(after=0)
            relay.lead_to(primary)
            for number in range(4):
                store.append_message("k", message(f"{number}"))
            assert store.conversation("k").info().message_count == 4
    finally:
        relay.close()


def kill(pair: Pair) -> None:
    pair.primary.interrupt()
    pair.standby.promote()


def hang(pair: Pair) -> None:
    pair.primary.hang()
    pair.standby.promote()


HAPPENINGS: Final[dict[str, Callable[[Pair], None]]] = {"killed": kill, "demoted": Pair.hand_over, "hung": hang}


@pytest.mark.parametrize("happening", [*HAPPENINGS, "restarted"])
def test_failover_neither_loses_nor_duplicates_a_message(pair: Pair, happening: str) -> None:
    pair.primary.wait_for_standby()
    url = f"{pair.url}&connect_timeout=2&statement_timeout=1s"
    with Store(url, retry=timedelta(seconds=60)) as patient, Store(url) as impatient:
        trying, failing = Writers(patient, "tried again"), Writers(impatient, "tried once")
        for key in ("tried again", "tried once"):
            patient.create(key)

        def go_on() -> None:
            trying.go_on()
            failing.go_on()

        with trying.at_work(), failing.at_work():
            for _ in range(ROUNDS):
                go_on()
                if happening == "restarted":
                    pair.primary.interrupt()
                    pair.primary.resume()
                else:
                    HAPPENINGS[happening](pair)
                    go_on()
                    pair = Pair(pair.standby, pair.primary)
                    pair.standby.rejoin(pair.primary)
                    pair.primary.wait_for_standby()
                go_on()
        stored, stored_once = (
            Counter(each.content for each in patient.conversation(key).iter_messages())
            for key in ("tried again", "tried once")
        )
    assert max(stored.values()) == max(stored_once.values()) == 1
    assert trying.errors == []
    assert set(trying.acknowledged) == set(stored)
    assert set(failing.acknowledged) <= set(stored_once)
