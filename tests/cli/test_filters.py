"""The filters that `sessions list`, `export` and `usage` share."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer
from support.commands import run
from support.factories import message

from lango_store import Store
from lango_store.cli import options


@pytest.fixture
def filled(url: str) -> str:
    """The URL of a store with five sessions that were updated a day apart, each with a turn; the last one yesterday."""
    start = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=5)
    now = [start]
    with Store(url, clock=lambda: now[0]) as store:
        for day in range(5):
            now[0] = start + timedelta(days=day)
            conversation = store.open(f"chat:{day}", user_id=f"u{day % 2}", agent_id=f"a{day % 3}")
            conversation.save_turn([message("Hello")], {"input_tokens": day, "output_tokens": 1})
    return url


FILTERS = {
    ("--since", "yesterday"): {4},
    ("--since", "3d"): {3, 4},
    ("--since", "3d", "--until", "yesterday"): {3},
    ("--until", "today"): {0, 1, 2, 3, 4},
    ("--agent", "a0"): {0, 3},
    ("--user", "u0", "--since", "7d"): {0, 2, 4},
    ("--prefix", "chat:1"): {1},
    ("--limit", "2"): {3, 4},
    ("--limit", "1", "--user", "u1"): {3},
}


@pytest.mark.parametrize("words", FILTERS)
def test_commands_share_their_filters(filled: str, tmp_path: Path, words: tuple[str, ...]) -> None:
    wanted = {f"chat:{day}" for day in FILTERS[words]}
    listed = run("sessions", "list", *words, "--url", filled).stdout
    used = run("usage", "--by", "key", *words, "--url", filled).stdout
    for printed in (listed, used):
        assert {line.split("\t")[0] for line in printed.splitlines()} == wanted
    done = run("export", "--format", "dive", "--to", str(tmp_path / "out"), *words, "--url", filled)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "out").iterdir())) == len(wanted)
    assert f"exported {len(wanted)} session" in done.stdout


def test_export_refuses_a_mixture_of_keys_and_filters(filled: str, tmp_path: Path) -> None:
    for words in ((), ("chat:1", "--since", "7d"), ("--all", "--limit", "3")):
        assert run("export", *words, "--to", str(tmp_path / "out"), "--url", filled).returncode == 2


def test_days_begin_at_midnight_in_the_time_zone() -> None:
    east, west = (options.zone(name) for name in ("Pacific/Kiritimati", "Pacific/Pago_Pago"))
    for zone in (east, west):
        today, yesterday = (options.time(word, zone) for word in ("today", "yesterday"))
        assert (today.hour, today.date() - yesterday.date()) == (0, timedelta(days=1))
        assert timedelta() <= datetime.now(UTC) - today < timedelta(days=1)
    assert options.time("2026-11-21", east) == datetime(2026, 11, 20, 10, tzinfo=UTC)
    assert options.time("2026-11-21T00:00Z", east) == datetime(2026, 11, 21, tzinfo=UTC)
    with pytest.raises(typer.BadParameter, match="yesterday"):
        options.time("last week")
    with pytest.raises(typer.BadParameter, match="Europe/Berlin"):
        options.zone("Middle/Earth")
