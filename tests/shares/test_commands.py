"""`lango-store shares`, and the links of `lango-store serve`."""

import json
import signal
import urllib.error
import urllib.request

import pytest
from support.commands import run
from support.processes import Program

from lango_store import Message, Share, Store

pytestmark = pytest.mark.one_database


@pytest.fixture
def shared(url: str) -> str:
    with Store(url) as store:
        for key, user in (("tab\tkey", "ann"), ("other", "bob")):
            store.create(key, user_id=user, messages=[Message.user("Hello"), Message.assistant("Hi")])
    return url


def ids(url: str, *options: str) -> list[str]:
    done = run("shares", "--json", "--url", url, *options)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line)["id"] for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_links_are_added_listed_and_removed(shared: str) -> None:
    assert "no session is shared" in run("shares", "--url", shared).stderr
    path = run("shares", "add", "tab\tkey", "--by", "ann", "--until", "2100-01-01", "--url", shared).stdout.strip()
    printed = Share.model_validate_json(
        run("shares", "add", "other", "--upto", "1", "--tools", "--json", "--url", shared).stdout
    )
    with Store(shared) as store:
        assert "Hi" in store.shares.document(path.removeprefix("/s/"))
        assert "Hi" not in store.shares.document(str(printed.token))
        first, second = store.shares.list().items
    assert (first.shared_by, first.upto, first.tools, second.upto, second.tools) == ("ann", 2, False, 1, True)
    lines = run("shares", "--url", shared).stdout.splitlines()
    assert lines[0].startswith(f"tab\\tkey\t{first.id}\t2\tno\tann\t")
    assert path.removeprefix("/s/") not in "".join(lines)
    assert ids(shared) == [first.id, second.id]
    assert (ids(shared, "--user", "bob"), ids(shared, "--prefix", "tab")) == ([second.id], [first.id])
    done = run("shares", "remove", "tab\tkey", second.id, "--url", shared)
    assert (done.returncode, done.stdout) == (1, "removed 0 links of session 'tab\\tkey'\n")
    done = run("shares", "remove", "other", second.id, "--url", shared)
    assert (done.returncode, done.stdout) == (0, "removed 1 link of session 'other'\n")
    assert run("shares", "remove", "tab\tkey", "--url", shared).returncode == 0
    assert ids(shared) == []


@pytest.mark.slow
def test_serve_shows_shared_conversations_without_its_secret(shared: str) -> None:
    with Store(shared) as store:
        token = store.conversation("other").share().token
    with Program("from lango_store.cli import main; main()", "serve", "--url", shared, "--port", "0") as program:
        try:
            address, _, _ = program.stdout.readline().strip().removesuffix("/").rpartition("/")
            with urllib.request.urlopen(f"{address}/s/{token}", timeout=30) as answer:
                assert b"Hi" in answer.read()
            for path in ("/s/unknown", "/s/", "/", "/session?key=other"):
                with pytest.raises(urllib.error.HTTPError, match="404") as caught:
                    urllib.request.urlopen(f"{address}{path}", timeout=30)
                caught.value.close()
            strange = urllib.request.Request(f"{address}/s/{token}", headers={"Host": "evil.example"})
            with pytest.raises(urllib.error.HTTPError, match="400") as caught:
                urllib.request.urlopen(strange, timeout=30)
            caught.value.close()
        finally:
            program.send_signal(signal.SIGINT)
            program.wait()
