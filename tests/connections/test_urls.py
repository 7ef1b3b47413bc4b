"""URLs: async drivers, and passwords that never appear in a text."""

import asyncio
import itertools
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from support.commands import run
from support.databases import MakeDatabase
from support.factories import message
from typer.testing import CliRunner

from lango_store import Store, cli, create_engine, schema
from lango_store._engine.url import parse
from lango_store.cli.output import print_error

SECRET = "S3cr3t"
"""A piece of a password that no text may hold."""

ODD = [
    "{}", "a{}", "{}@", "a@{}", "{}@b", "a:{}", "{}:b", "a/{}", "{}/b", "a?{}", "{}?b", "a&{}", "{}&b=c", "a#{}",
    "{}#b", "a {}", "{} b", " {} ", "a+{}", "{}%", "%{}", "%ZZ{}", "%4{}", "%40{}", "a%2F{}", "%00{}", "{}%0A",
    "{}\n", "\t{}", "ä{}ö", "{}\udc80", "a[{}]", "[{}", "{}]", "a=b{}", "{};c", "a,{}", "'{}'", '"{}"', "\\{}",
    "{}\\", "a@b@{}", "a/b@{}@c", "a?b@{}/c", "😀{}", "%F0%9F%98%80{}", "%ff{}", "a://{}", "{}://a", "$({})", "`{}`",
    "<{}>",
]  # fmt: skip
"""Ways to write a password in a URL."""

PLACES = [
    "postgresql://ann:{}@127.0.0.1:1/agents",
    "postgres://ann:{}@127.0.0.1:1/agents?connect_timeout=2",
    "postgresql+psycopg://:{}@127.0.0.1:1",
    "postgresql+asyncpg://ann:{}@127.0.0.1:1/agents?ssl=disable",
    "postgresql://ann:{}@[::1]:1/agents",
    "postgresql://ann:{}@/agents?host=/nowhere",
    "postgresql://ann:{}@/agents?host=127.0.0.1:1&host=127.0.0.1:2",
    "postgresql://ann:{}@127.0.0.1:1,127.0.0.1:2/agents",
    "postgresql://127.0.0.1:1/agents?user=ann&password={}",
    "postgresql://ann@127.0.0.1:1/agents?sslpassword={}",
]
"""Valid positions of a password, each with every way to write it."""

MISTYPED = [
    "postgresql://ann:{}", "postgresql://ann:{}/agents", "postgresql://ann:{}#127.0.0.1/agents",
    "postgresql:/ann:{}@h/agents", "postgresql:ann:{}@h/agents", "postgres:ann:{}@h", "ann:{}@127.0.0.1/agents",
    "{}@h", "{}", "{}://h/agents", "postgresql+{}://h/agents", "{}+psycopg://h", "mysql://ann:{}@h/agents",
    "postgresql+psycopg2://ann:{}@h/agents", "host=127.0.0.1 user=ann password={} dbname=agents",
    "postgresql://host=h password={}/agents", "postgresql://h/agents password={}",
    "postgresql://h/agents;password={}", "postgresql://h/agents&password={}",
    "postgresql://127.0.0.1:1/agents?sslmode=disable;password={}",
    "postgresql://127.0.0.1:1/agents?sslmode=disable password={}", "postgresql://127.0.0.1:1/agents?Password={}",
    "postgresql://127.0.0.1:1/agents?passwd={}", "postgresql://127.0.0.1:1/?pwd={}",
    "postgresql://127.0.0.1:1/agents?password={}&password={}",
    "postgresql://ann/{}@127.0.0.1:1/agents", "postgresql://ann@{}@127.0.0.1/agents",
    "postgresql://ann?{}@127.0.0.1:1/agents", "postgresql://127.0.0.1:{}/agents",

    "postgresql://127.0.0.1/?host=ann:{}@h",
    "postgresql+asyncpg://127.0.0.1:1/agents?passwort={}", "sqlite://ann:{}@/agent.db", "sqlite://:{}@h/agent.db",
    "sqlite:///nowhere/agent.db?password={}",

    "sqlite+pysqlcipher://:{}@/agent.db", "sqlite:///nowhere/agent.db;password={}",
]  # fmt: skip
"""Positions of a password in mistyped URLs."""

URLS = [
    *(place.format(odd.format(SECRET)) for place, odd in itertools.product(PLACES, ODD)),
    *(url.replace("{}", odd.format(SECRET)) for url, odd in itertools.product(MISTYPED, ["{}", "x%40{}"])),
]


def texts_of(url: str, log: pytest.LogCaptureFixture) -> Iterator[str]:
    """Use a URL as a program does, and return all texts that it produces."""
    log.clear()
    try:
        with Store(url) as store:
            yield from (repr(store), repr(store.engine), str(store.engine.url), repr(store.engine.url))
            store.ping()
    except Exception as error:
        seen: BaseException | None = error
        while seen is not None:
            yield from (str(seen), repr(seen))
            seen = seen.__cause__ or seen.__context__
        yield "".join(traceback.format_exception(error))
    yield log.text


@pytest.mark.slow
def test_errors_and_reprs_show_no_password(caplog: pytest.LogCaptureFixture) -> None:
    assert len(URLS) > 500
    caplog.set_level(logging.DEBUG)
    leaks = {url: text for url in URLS for text in texts_of(url, caplog) if SECRET in text}
    assert leaks == {}


@pytest.mark.parametrize("url", URLS[:: len(URLS) // 40])
def test_output_of_a_command_shows_no_password(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    done = CliRunner().invoke(cli.app, ["db", "current", "--url", url])
    if done.exception is not None and isinstance(done.exception, Exception):
        print_error(done.exception)
    written = capfd.readouterr()
    assert SECRET not in done.output + written.out + written.err


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("postgresql://ann:hunter@2@x/y", "%40"),
        ("postgresql://ann:hunter2/y", "write|give sqlite"),
        ("postgresql://ann:654321/y", "5432"),
        ("postgresql://x/y?prepare_threshold=often", "prepare_threshold"),
        ("sqlite://agent.db", "sqlite:///file"),
        *((url, "sqlite:///file") for url in ("mysql://x/y", "postgresql+pg8000://x/y", "")),
    ],
)
def test_url_error_shows_the_correct_form(url: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy) as raised:
        Store(url)
    assert not any(text in str(raised.value) for text in ("hunter", "654321"))


def test_password_reaches_driver_from_any_part_of_url() -> None:
    for url in (
        "postgresql://ann:p%40ss@h/d",
        "postgresql://ann@h/d?password=p%40ss",
        "postgresql://ann:x@h/d?password=p%40ss",
    ):
        engine = create_engine(url)
        _, given = engine.dialect.create_connect_args(engine.url)
        _, beside = parse(url)
        assert {**given, **beside}["password"] == "p@ss"


# URLs of async engines


def test_async_engine_url_is_converted_to_sync_url() -> None:
    def parsed(url: str) -> tuple[str, dict[str, object]]:
        found, beside = parse(url)
        return found.render_as_string(hide_password=False), beside

    assert parsed("sqlite+aiosqlite:///x.db?timeout=3") == ("sqlite:///x.db?timeout=3", {})
    assert parsed("postgresql+asyncpg://a:b@h:1/d") == ("postgresql+psycopg://a:b@h:1/d", {})
    assert parsed("postgresql+asyncpg://h/d?ssl=require") == ("postgresql+psycopg://h/d?sslmode=require", {})
    pooled = parsed("postgresql+asyncpg://h/d?prepared_statement_cache_size=0")
    assert pooled == ("postgresql+psycopg://h/d", {"prepare_threshold": None})


def of_async_engine(url: str) -> str:
    return url.replace("sqlite://", "sqlite+aiosqlite://").replace("postgresql+psycopg://", "postgresql+asyncpg://")


def test_store_and_command_line_accept_async_engine_url(empty_url: str) -> None:
    url = of_async_engine(empty_url)
    assert url != empty_url
    assert run("db", "upgrade", "--url", url).returncode == 0
    assert schema.check(url) == []
    with Store(url) as store:
        store.create("k", messages=[message()])
        assert len(store.get("k").messages) == 1


def test_using_refuses_an_asyncpg_session_and_names_the_engine_to_create(make_postgres: MakeDatabase) -> None:
    engine = create_async_engine(of_async_engine(make_postgres()))

    async def append() -> None:
        with Store(engine.url) as store:
            try:
                async with AsyncSession(engine) as session:
                    await session.run_sync(lambda own: store.using(own).append_message("k", message()))
            finally:
                await engine.dispose()

    with pytest.raises(ValueError, match=r"create_async_engine\(.*postgresql\+psycopg"):
        asyncio.run(append())


def test_timeout_in_a_sqlite_url_sets_the_busy_timeout(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/x.db?timeout=0.5")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 500
    engine.dispose()


def test_url_with_an_empty_file_name_is_refused() -> None:
    with pytest.raises(ValueError, match="names no file"):
        Store("sqlite:///")


@pytest.mark.parametrize("query", ["pgbouncer=true", "schema=public"])
def test_parameter_of_another_library_is_refused_when_the_store_is_created(query: str) -> None:
    with pytest.raises(ValueError, match=query.partition("=")[0]):
        Store(f"postgresql://127.0.0.1:1/agents?{query}")


def test_hosts_of_a_failover_url_reach_the_driver() -> None:
    engine = create_engine("postgresql+psycopg2://ann:pw@one:1,two:2/agents?target_session_attrs=read-write")
    (_, arguments) = engine.dialect.create_connect_args(engine.url)
    assert {"host": "one,two", "port": "1,2", "dbname": "agents", "user": "ann"}.items() <= arguments.items()


def test_escape_in_a_file_name_is_decoded_unless_only_the_literal_name_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert create_engine("sqlite:///a%20b.db").url.database == "a b.db"
    Path("a%20b.db").touch()
    assert create_engine("sqlite:///a%20b.db").url.database == "a%20b.db"
    Path("a b.db").touch()
    assert create_engine("sqlite:///a%20b.db").url.database == "a b.db"


def test_relative_uri_names_the_same_file_after_a_change_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with Store("sqlite:///file:a%20b.db?uri=true", migrate=True) as store:
        store.create("k")
        monkeypatch.chdir(tmp_path / "other")
        store.engine.dispose()
        assert store.exists("k")
    assert [path.name for path in tmp_path.glob("*.db")] == ["a b.db"]
    assert list((tmp_path / "other").iterdir()) == []
