"""`lango-store serve --api`: OpenAI's Conversations API from the command line."""

import re
import signal
from pathlib import Path

import openai
import pytest
from support.commands import run
from support.processes import LANGO_STORE, Program

from lango_store import Store


def read_line(program: Program, name: str) -> str:
    line = program.stdout.readline().strip()
    match = re.fullmatch(f"{name}=(.+)", line)
    assert match, (line, program.stderr.read())
    return match[1]


@pytest.mark.slow
def test_api_serves_one_user_from_a_new_file(tmp_path: Path) -> None:
    with Program(LANGO_STORE, "serve", "--api", "--user", "ann", "--port", "0", folder=tmp_path) as program:
        try:
            base_url, token = read_line(program, "OPENAI_BASE_URL"), read_line(program, "OPENAI_API_KEY")
            with openai.OpenAI(api_key=token, base_url=base_url, max_retries=0) as client:
                id = client.conversations.create(items=[{"role": "user", "content": "Hi"}]).id
            with (
                openai.OpenAI(api_key="another", base_url=base_url, max_retries=0) as client,
                pytest.raises(openai.AuthenticationError),
            ):
                client.conversations.retrieve(id)
            for url in (base_url, base_url.removesuffix("/v1"), base_url.removesuffix("/v1") + "/v2"):
                with (
                    openai.OpenAI(api_key=token, base_url=url, max_retries=0) as client,
                    pytest.raises(openai.NotFoundError, match="Invalid URL"),
                ):
                    client.get("", cast_to=object)
        finally:
            program.send_signal(signal.SIGINT)
            program.wait()
    with Store(f"sqlite:///{tmp_path}/conversations.db") as store:
        assert store.conversation(id).info().user_id == "ann"


@pytest.mark.slow
def test_api_serves_the_user_of_each_token(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agent.db"
    with Store(url, migrate=True) as store:
        store.create("conv_a", user_id="ann")
        store.create("conv_b", user_id="Bob Smith")
    file = tmp_path / "tokens"
    file.write_text("token-of-ann-123 ann\n\ntoken-of-bob-123 Bob Smith\n", encoding="utf-8-sig")
    with Program(LANGO_STORE, "serve", "--api", "--url", url, "--tokens", file, "--port", "0") as program:
        try:
            base_url = read_line(program, "OPENAI_BASE_URL")
            for token, own, other in (("token-of-ann-123", "a", "b"), ("token-of-bob-123", "b", "a")):
                headers = {"Host": "name-of-a-proxy.example"}
                with openai.OpenAI(api_key=token, base_url=base_url, max_retries=0, default_headers=headers) as client:
                    assert client.conversations.retrieve(f"conv_{own}").id == f"conv_{own}"
                    with pytest.raises(openai.NotFoundError):
                        client.conversations.retrieve(f"conv_{other}")
        finally:
            program.send_signal(signal.SIGINT)
            program.wait()


@pytest.mark.parametrize(
    ("words", "lines", "reason"),
    [
        (["--api"], None, "give --user"),
        (["--api", "--user", "ann", "--tokens", "tokens"], None, "give --user"),
        (["--api", "--user", ""], None, "give --user"),
        (["--user", "ann"], None, "needs --api"),
        (["--tokens", "tokens"], None, "needs --api"),
        (["--api", "--tokens", "none"], None, "cannot be read"),
        (["--api", "--tokens", "tokens"], "\n", "has no tokens"),
        (["--api", "--tokens", "tokens"], "short ann", "line 1"),
        (["--api", "--tokens", "tokens"], "töken-of-ann-1234 ann", "line 1"),
        (["--api", "--tokens", "tokens"], "token-of-ann-123", "line 1"),
        (["--api", "--tokens", "tokens"], "token-of-ann-123 ann\ntoken-of-ann-123 bob", "line 2"),
    ],
)
def test_wrong_options_of_the_api_are_named(tmp_path: Path, words: list[str], lines: str | None, reason: str) -> None:
    if lines is not None:
        (tmp_path / "tokens").write_text(lines)
    named = [str(tmp_path / word) if word in ("tokens", "none") else word for word in words]
    done = run("serve", "--url", f"sqlite:///{tmp_path}/agent.db", *named)
    assert (done.returncode, reason in " ".join(done.stderr.split())) == (2, True), done.stderr
