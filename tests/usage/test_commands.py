"""Usage on the command line: `usage`, `stats`, metrics for Prometheus, and the totals of a session."""

import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.commands import run, run_on_terminal
from support.factories import message

from lango_store import Store
from lango_store.testing import Clock


@pytest.fixture
def filled(store: Store, clock: Clock, url: str) -> str:
    """A store with turns of two users on two days."""
    clock.time = datetime(2026, 11, 30, 12, tzinfo=UTC)
    store.create("a", user_id="ann", agent_id="writer")
    store.create("b", user_id="b\tob")
    for key in ("a", "b"):
        store.conversation(key).save_turn([message()], {"input_tokens": 1200, "output_tokens": 40, "cost_usd": 0.25})
    clock.move(days=1)
    store.conversation("a").save_turn([message()], {"prompt_tokens": 300}, metadata={"model": "large"})
    return url


def test_usage_prints_tab_separated_lines_to_a_pipe(filled: str) -> None:
    assert run("usage", "--url", filled).stdout.splitlines() == [
        "ann\t2\t1\t0\t0\t40\t1500\t0.25",
        "b\\tob\t1\t1\t0\t0\t40\t1200\t0.25",
    ]


def test_usage_accepts_several_groups_and_filters(filled: str) -> None:
    printed = run("usage", "--by", "user,day", "--since", "2026-12-01", "--url", filled).stdout
    assert printed == "ann\t2026-12-01\t1\t1\t0\t0\t0\t300\t\n"
    assert run("usage", "--by", "model", "--agent", "writer", "--url", filled).stdout.splitlines() == [
        "\t1\t1\t0\t0\t40\t1200\t0.25",
        "large\t1\t1\t0\t0\t0\t300\t",
    ]
    assert run("usage", "--by", "", "--url", filled).stdout.startswith("3\t2\t")
    assert run("usage", "--prefix", "nothing", "--url", filled).stderr == "no turns\n"


def test_usage_prints_csv_and_json(filled: str) -> None:
    rows = [*csv.DictReader(run("usage", "--csv", "--by", "user,month", "--url", filled).stdout.splitlines())]
    assert [(row["user_id"], row["month"], row["input_tokens"]) for row in rows] == [
        ("ann", "2026-11", "1200"),
        ("ann", "2026-12", "300"),
        ("b\tob", "2026-11", "1200"),
    ]
    first, _ = run("usage", "--json", "--url", filled).stdout.splitlines()
    assert json.loads(first)["usage"] == {
        "input_tokens": 1200,
        "output_tokens": 40,
        "cost_usd": 0.25,
        "prompt_tokens": 300,
    }


def test_usage_rounds_costs_as_money(url: str) -> None:
    with Store(url) as store:
        for cost in (0.1, 0.2):
            store.open("a", model="large").save_turn([message()], {"cost_usd": cost})
        store.open("b", model="small").save_turn([message()], {"cost_usd": 0.00001234})
        store.open("c", model="tiny").save_turn([message()], {"cost_usd": 1e-9})
    printed = run("usage", "--by", "model", "--url", url).stdout
    assert [line.rpartition("\t")[2] for line in printed.splitlines()] == ["0.30", "0.000012", "0.00"]
    rows = csv.DictReader(run("usage", "--by", "model", "--csv", "--url", url).stdout.splitlines())
    assert [row["cost_usd"] for row in rows] == ["0.30", "0.000012", "0.00"]
    lines = run("usage", "--by", "model", "--json", "--url", url).stdout.splitlines()
    assert [json.loads(line).get("cost_usd") for line in lines] == [0.3, 1.2e-05, None]


def test_usage_has_days_and_times_of_a_time_zone(filled: str) -> None:
    at = ("usage", "--by", "day", "--timezone", "Pacific/Auckland", "--url", filled)  # 13 hours before UTC
    assert [line.split("\t")[0] for line in run(*at).stdout.splitlines()] == ["2026-12-01", "2026-12-02"]
    assert run(*at, "--since", "2026-12-02").stdout.startswith("2026-12-02\t")
    assert run(*at, "--until", "2026-12-01").stderr == "no turns\n"
    refused = run("usage", "--timezone", "Auckland", "--url", filled)
    assert (refused.returncode, "is not a time zone" in " ".join(refused.stderr.split())) == (2, True)
    refused = run("usage", "--until", "tomorrow", "--url", filled)
    assert refused.returncode == 2
    assert "for --until: 'tomorrow' is not a time" in " ".join(refused.stderr.split())


def test_usage_chart_has_a_bar_for_each_day_with_a_part_for_each_model(url: str, clock: Clock) -> None:
    now = datetime.now(UTC)
    clock.time = now - timedelta(days=40)
    with Store(url, clock=lambda: clock.time) as store:
        for days, model, tokens in ((0, "old", 9), (36, "large", 300), (36, "small", 100), (38, None, 200)):
            clock.time = now - timedelta(days=40 - days)
            store.open(f"{days}{model}", model=model).save_turn([message()], {"input_tokens": tokens, "cost_usd": 0.5})
        for number in range(6):
            store.open(f"m{number}", model=f"m{number}").save_turn([message()], {"input_tokens": 10})
    done = run("usage", "--chart", "--url", url, environment={"COLUMNS": "80"})
    title, header, *lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert (title, header.split()) == ("Tokens per day", ["day", "tokens", "dollars"])
    dates = [f"{now - timedelta(days=ago):%Y-%m-%d}" for ago in (4, 3, 2)]
    bars = [re.fullmatch(r"(\S+) +([█▓▒░▚·]*) +([\d,]+) *([\d.]*)", line) for line in lines[:3]]
    assert all(bars)
    found = [bar.groups() for bar in bars if bar]
    assert [each[0] for each in found] == dates
    assert [each[2:] for each in found] == [("400", "1.00"), ("0", ""), ("260", "0.50")]
    assert re.fullmatch("█{33,}▒{11,}", found[0][1])
    assert found[1][1] == ""
    assert re.fullmatch("▓+░+▚+·+", found[2][1])
    assert lines[3:] == ["██ large", "▓▓ –", "▒▒ small", "░░ m0", "▚▚ m1", "·· other models"]
    assert f"\n{now - timedelta(days=40):%Y-%m-%d}" in run("usage", "--chart", "--since", "60d", "--url", url).stdout
    assert run("usage", "--chart", "--until", "60d", "--since", "90d", "--url", url).stderr == "no turns\n"
    assert run("usage", "--chart", "--csv", "--url", url).returncode == 2


def test_usage_refuses_unknown_group(filled: str) -> None:
    refused = run("usage", "--by", "users", "--url", filled)
    assert refused.returncode == 2
    assert "'users' is not one of user, agent, key" in " ".join(refused.stderr.split())


@pytest.mark.slow
def test_usage_on_a_terminal_is_a_table_with_bars(filled: str) -> None:
    shown, code = run_on_terminal("usage", "--by", "day", "--url", filled, columns=120)
    assert code == 0
    assert "Usage by day" in shown
    assert re.search(r"2026-11-30 +2 +2 +0 +0 +80 +2,400 +0\.50 +█+", shown)
    shown, _ = run_on_terminal("usage", "--by", "model", "--url", filled, columns=120)
    assert re.search(r"large +1 +1 +0 +0 +0 +300 +– ", shown)
    shown, _ = run_on_terminal("usage", "--by", "", "--url", filled, columns=120)
    assert re.search(r"all turns +3 +2 +0 +0 +80 +2,700 +0\.50", shown)
    shown, _ = run_on_terminal("usage", "--by", "model", "--until", "2026-11-30", "--url", filled)
    assert shown.strip() == "no turns"


@pytest.fixture
def priced(store: Store, clock: Clock, url: str) -> str:
    """A store with turns of three users: one of tiny cost, one of large numbers, and one with a long name."""
    clock.time = datetime(2026, 11, 30, 12, tzinfo=UTC)
    for user, tokens, cost in (("ann", 5, 7e-05), ("bob", 1_234_567, 12.345678), ("carol-4711@example.org", 30, 0.0)):
        store.create(user, user_id=user)
        store.conversation(user).save_turn([message()], {"input_tokens": tokens, "cost_usd": cost})
    return url


def test_usage_table_on_a_wide_terminal_has_all_columns_and_does_not_wrap(priced: str) -> None:
    shown, _ = run_on_terminal("usage", "--by", "user,day", "--url", priced, columns=110)
    assert [" ".join(line.strip("█ ").split()) for line in shown.splitlines()[2:]] == [
        "cached reasoning output input",
        "user · day turns sessions tokens tokens tokens tokens dollars",
        "ann · 2026-11-30 1 1 0 0 0 5 0.000070",
        "bob · 2026-11-30 1 1 0 0 0 1,234,567 12.345678",
        "carol-4711@example.org · 2026-11-30 1 1 0 0 0 30 0.000000",
    ]


def test_usage_table_on_a_terminal_of_80_characters_leaves_out_columns_and_does_not_wrap(priced: str) -> None:
    shown, _ = run_on_terminal("usage", "--by", "user,day", "--url", priced, columns=80)
    assert [" ".join(line.strip("█ ").split()) for line in shown.splitlines()[2:]] == [
        "output input",
        "user · day turns tokens tokens dollars",
        "ann · 2026-11-30 1 0 5 0.000070",
        "bob · 2026-11-30 1 0 1,234,567 12.345678",
        "carol-4711@example.org · 2026-11-30 1 0 30 0.000000",
    ]


def test_usage_table_on_a_terminal_of_40_characters_wraps_names_and_cuts_no_number(priced: str) -> None:
    shown, _ = run_on_terminal("usage", "--by", "user,day", "--url", priced, columns=40)
    assert re.search(r"^bob · +0 +1,234,567 +12\.345678\s*$", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 40


def test_stats_print_total_usage_on_one_line(filled: str) -> None:
    assert "usage of turns: input_tokens 2,700, output_tokens 80, cost $0.50\n" in run("stats", "--url", filled).stdout


def test_stats_without_turns_print_no_usage(url: str) -> None:
    assert "usage" not in run("stats", "--url", url).stdout


def parsed(text: str) -> dict[str, float]:
    """Return the samples of an exposition in the text format of Prometheus, each after its HELP and TYPE lines."""
    samples: dict[str, float] = {}
    lines = text.splitlines()
    for help_, type_, sample in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        match = re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*) (\S+)", sample)
        assert match is not None
        assert re.fullmatch(rf"# HELP {match[1]} [^\n\\]+\.", help_)
        assert type_ == f"# TYPE {match[1]} gauge"
        assert match[1] not in samples
        samples[match[1]] = float(match[2])
    assert text.endswith("\n")
    return samples


def test_prometheus_metrics_equal_the_numbers_of_stats_and_usage(store: Store, clock: Clock, filled: str) -> None:
    with Store(store.engine, clock=clock, payload_threshold=10) as small:
        small.append_message("a", message("x" * 100, tokens=7))
        small.append_message("a", message(role="record"))
        small.touch("b", ttl=None)
    printed = run("stats", "--prometheus", "--url", filled)
    assert (printed.returncode, printed.stderr) == (0, "")
    totals = store.stats()
    assert parsed(printed.stdout) == {
        "lango_store_sessions": 2,
        "lango_store_expired": 0,
        "lango_store_turns": 3,
        "lango_store_messages": 4,
        "lango_store_records": 1,
        "lango_store_tokens": 7,
        "lango_store_bytes": totals.bytes,
        "lango_store_payload_bytes": 100,
        "lango_store_owed_turns": 0,
        "lango_store_oldest_owed_seconds": 0,
        "lango_store_given_up_turns": 0,
        "lango_store_unknown_calls": 0,
        "lango_store_unanswered_suspensions": 0,
        "lango_store_usage_input_tokens": 2700,
        "lango_store_usage_output_tokens": 80,
        "lango_store_usage_cached_tokens": 0,
        "lango_store_usage_reasoning_tokens": 0,
        "lango_store_usage_cost_usd": 0.5,
    }


def test_prometheus_metrics_of_an_empty_store_are_zero(url: str) -> None:
    samples = parsed(run("stats", "--prometheus", "--url", url).stdout)
    assert {name for name, value in samples.items() if value} <= {"lango_store_bytes"}


def test_stats_refuse_two_output_formats(url: str) -> None:
    refused = run("stats", "--prometheus", "--json", "--url", url)
    assert refused.returncode == 2


@pytest.mark.parametrize(
    ("usage", "shown"),
    [
        ({"cost_usd": 0.1}, "cost $0.30"),
        ({"cost_usd": 0.0000071}, "cost $0.000021"),
        ({"cost_usd": 0.01}, "cost $0.03"),
        ({"cost_usd": 0}, "cost $0.00"),
        ({"total_cost_usd": 1234.5}, "cost $3,703.50"),
        ({"input_tokens": 5, "cost_usd": 0.000123}, "input_tokens 15, cost $0.000369"),
        ({"cost": {"usd": 0.5}}, "cost.usd 1.5"),
        ({"input_tokens": 5, "tier": "standard", "steps": [{"input_tokens": 5}]}, "input_tokens 15"),
    ],
)
def test_show_and_html_document_contain_total_usage_and_cost(
    store: Store, url: str, usage: dict[str, Any], shown: str
) -> None:
    talk = store.open("k")
    for _ in range(3):
        talk.save_turn([message()], usage)
    assert f"usage of turns: {shown} " in run("sessions", "show", "k", "--url", url).stdout
    html = store.get("k").to_html(turns=talk.turns.list())
    assert f"<dt>usage of turns</dt><dd>{shown.replace(', ', ' · ')}</dd>" in html


def test_show_and_html_document_omit_usage_that_has_no_numbers(store: Store, url: str) -> None:
    store.open("k").save_turn([message()], {"tier": "standard", "steps": {}})
    assert "usage of turns" not in run("sessions", "show", "k", "--url", url).stdout
    assert "usage of turns" not in store.get("k").to_html(turns=store.conversation("k").turns.list())


def test_csv_has_no_control_characters_and_no_formulas(store: Store, url: str) -> None:
    users = [
        "=1+1",
        "+1",
        "-1",
        "@a",
        "\t=1",
        "\r=1",
        "\n=1",
        " =1",
        "＝1",
        "a=1",
        "a\x1b]52;c;aGk=\a",
        "b\x9b31m",
        "c\u202ed",
    ]
    for number, user in enumerate(users):
        store.create(f"k{number}", user_id=user)
        store.conversation(f"k{number}").save_turn([message()], {"output_tokens": 1})
    printed = run("usage", "--csv", "--url", url).stdout
    assert not set(printed) & {"\x1b", "\a", "\x9b", "\u202e"}
    cells = {row["user_id"] for row in csv.DictReader(io.StringIO(printed, newline=""))}
    assert cells == {
        "'=1+1",
        "'+1",
        "'-1",
        "'@a",
        "'\t=1",
        "␍=1",
        "'\n=1",
        "' =1",
        "'＝1",
        "a=1",
        "a␛]52;c;aGk=␇",
        "b\\x9b31m",
        "c\\u202ed",
    }
