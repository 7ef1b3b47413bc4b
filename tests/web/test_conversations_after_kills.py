"""The Conversations API while its server is killed: requests that are sent again store each item once."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Final

import openai
import pytest
from support.conversations_api import said
from support.polling import until

from lango_store import Store

SERVER: Final = """
import socket, sys, uvicorn
from lango_store import AsyncStore
from lango_store.web import conversations

listening = socket.socket(fileno=int(sys.argv[2]))
app = conversations(AsyncStore(sys.argv[1]), user=lambda request: "ann")
uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none")).run(sockets=[listening])
"""
WRITERS, BATCHES, BATCH, KILLS = 8, 10, 3, 4


class Killed:
    """A server that can be killed and started again, on one socket."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        self.start()

    def start(self) -> None:
        number = self._socket.fileno()
        command = [sys.executable, "-c", SERVER, self._url, str(number)]
        self._process = subprocess.Popen(command, pass_fds=[number], env=os.environ)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        self._socket.close()


@pytest.fixture
def killed(url: str) -> Iterator[Killed]:
    server = Killed(url)
    yield server
    server.close()


class Writer(threading.Thread):
    """A client that stores batches of items. Half of the writers send no ids, but the header of repeated requests."""

    def __init__(self, base_url: str, id: str, number: int) -> None:
        super().__init__()
        self.stored: list[list[str]] = []
        self._base_url, self._id, self._number = base_url, id, number

    def run(self) -> None:
        with openai.OpenAI(api_key="ann", base_url=self._base_url, max_retries=0) as client:
            for batch in range(BATCHES):
                names = [f"{self._number}-{batch}-{each}" for each in range(BATCH)]
                has_ids = self._number % 2 == 0
                items = [said(name, id=f"msg_{name}") if has_ids else said(name) for name in names]
                headers = {} if has_ids else {"Idempotency-Key": names[0]}
                while True:
                    try:
                        client.conversations.items.create(self._id, items=items, extra_headers=headers)  # type: ignore[arg-type]
                        break
                    except openai.APIConnectionError:
                        continue
                self.stored.append(names)


@pytest.mark.timeout(300)
def test_writers_store_each_item_once_while_the_server_is_killed(killed: Killed, url: str) -> None:
    with Store(url) as store:
        store.create("conv_k", user_id="ann")
        writers = [Writer(killed.base_url, "conv_k", number) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        for kill in range(1, KILLS + 1):
            until(lambda: sum(len(each.stored) for each in writers) >= kill * WRITERS * BATCHES // (KILLS + 1), 60)  # noqa: B023
            killed.kill()
            killed.start()
        for writer in writers:
            writer.join()
        log = [str(message.content) for message in store.get("conv_k").messages]
    batches = [log[first : first + BATCH] for first in range(0, len(log), BATCH)]
    assert sorted(batches) == sorted(batch for writer in writers for batch in writer.stored)
    assert len(log) == WRITERS * BATCHES * BATCH
