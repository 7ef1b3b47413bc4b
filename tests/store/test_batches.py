"""A batch is encoded once, and may be appended again after a failure."""

from copy import deepcopy

from lango_store import Message, Store
from lango_store._operations import appends
from lango_store._operations.appends import Batch


def test_an_append_leaves_its_batch_as_it_was(url: str) -> None:
    new = Batch([Message.user("one"), Message.assistant("two")])
    before = deepcopy(new.rows)
    with Store(url) as store:
        store.create("k")
        for _ in range(2):
            with store.context.single_write() as connection:
                appends.append(connection, store.context.moment(connection), "k", new)
            assert [{name: row[name] for name in before[0]} for row in new.rows] == before
        assert [message.content for message in store.messages("k")] == ["one", "two", "one", "two"]
