"""Retention policies, hidden sessions and purges with a grace period."""

import json
import re
from codecs import BOM_UTF8
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from support.commands import run
from support.factories import messages
from support.paths import ROOT

from lango_store import (
    ExpiryReport,
    InvalidFile,
    InvalidState,
    SessionExpired,
    SessionNotFound,
    Store,
    create_engine,
)
from lango_store._rooms.expiry.policies import read_rules
from lango_store.tables import SessionRow
from lango_store.testing import Clock

DAY = timedelta(days=1)

POLICY = """
[[rules]]
name = "lawsuit"
user = "ann"
hold = "case 17"

[[rules]]
name = "support"
agent = "support"
idle = "90d"
archive = "cold.db"

[[rules]]
name = "guests"
prefix = "guest:"
age = "2d"
descendants = true

[[rules]]
name = "rest"
idle = "30d"
grace = "7d"
"""


def policy(folder: Path, text: str = POLICY) -> Path:
    path = folder / "retention.toml"
    path.write_text(text)
    return path


def keys(store: Store) -> set[str]:
    return {info.key for info in store.iter_sessions(expired=None)}


def fill(store: Store, clock: Clock) -> None:
    """Create sessions for each rule of the policy, 40 days ago."""
    store.create("ann", user_id="ann", agent_id="support", messages=messages(1))
    store.create("ann expired", user_id="ann", ttl=DAY)
    store.create("support", agent_id="support")
    store.create("support expired", agent_id="support", ttl=DAY, messages=messages(2))
    store.create("guest:1", messages=messages(3))
    store.create("guest:1/child")
    store.create("idle")
    store.create("hidden", ttl=35 * DAY)
    clock.move(days=40)
    store.touch("hidden", ttl=DAY)
    for key in ("guest:2", "new"):
        store.create(key)


def test_policy_applies_only_the_first_rule_that_matches(store: Store, clock: Clock, tmp_path: Path) -> None:
    fill(store, clock)
    before = keys(store)
    planned = store.maintenance.apply_policy(policy(tmp_path), dry_run=True)
    assert keys(store) == before
    reports = store.maintenance.apply_policy(policy(tmp_path), batch_size=1)
    for found in (planned, reports):
        assert [(each.rule, each.put_on_hold, each.sessions, each.messages) for each in found] == [
            ("lawsuit", 2, 0, 0),
            ("support", 0, 1, 2),
            ("guests", 0, 2, 3),
            ("rest", 0, 2, 0),
        ]
    assert [info.key for info in planned[1].oldest] == ["support expired"]
    assert keys(store) == {"ann", "ann expired", "support", "guest:2", "new"}
    assert store.conversation("ann expired").info(expired=True).hold == "case 17"
    with Store(f"sqlite:///{tmp_path / 'cold.db'}") as cold:
        assert keys(cold) == {"support expired"}


KEYS = ("a", "a/b", "a/b/c", "a/c", "b", "b/a", "c")
MATCHES = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(["a", "a/b", "b"]) for name in ("agent", "user", "prefix")}
)
ACTIONS = st.just({"hold": "case"}) | st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(["0d", "1d", "5d", "36500d"]) for name in ("idle", "age", "grace")}
)
SESSIONS = st.tuples(
    *[st.sampled_from([None, "a", "b"])] * 2, st.sampled_from([None, 1, 3]), st.sampled_from([None, "x"])
)


@given(
    matches=st.lists(MATCHES, min_size=1, max_size=4),
    actions=st.lists(ACTIONS, min_size=4, max_size=4),
    sessions=st.lists(SESSIONS, min_size=7, max_size=7),
)
def test_dry_run_of_a_policy_reports_what_a_run_does(
    store: Store, clock: Clock, tmp_path: Path, matches: list[Any], actions: list[Any], sessions: list[Any]
) -> None:
    lines = []
    for number, fields in enumerate(matches):
        rule = {"name": f"rule {number}"} | fields | actions[number]
        lines += ["[[rules]]", *(f'{name} = "{value}"' for name, value in rule.items())]
    if "hold" not in rule:
        lines.append("descendants = true")
    path = policy(tmp_path, "\n".join(lines))
    try:
        read_rules(path)
    except InvalidFile:
        return  # a rule that never applies is refused
    with store.engine.begin() as connection:
        connection.execute(sa.delete(SessionRow.__table__))
    for key, (agent, user, ttl, hold) in zip(KEYS, sessions, strict=True):
        store.create(key, agent_id=agent, user_id=user, ttl=ttl and ttl * DAY, messages=messages(1))
        store.conversation(key).update(hold=hold)
        clock.move(days=1)
    planned = store.maintenance.apply_policy(path, dry_run=True)
    assert len(keys(store)) == len(KEYS)
    done = store.maintenance.apply_policy(path)
    compared = [
        [(each.sessions, each.messages, each.put_on_hold, each.held) for each in reports] for reports in (planned, done)
    ]
    assert compared[0] == compared[1]
    assert len(KEYS) - len(keys(store)) == sum(each.sessions for each in done)


def test_policy_of_the_page_is_valid(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```", (ROOT / "docs/howto/expiry.md").read_text(), re.MULTILINE | re.DOTALL)
    path = policy(tmp_path)
    path.write_bytes(BOM_UTF8 + text.replace("\n", "\r\n").encode())  # as some editors save it
    rules = read_rules(path)
    assert [rule.name for rule in rules] == ["lawsuit", "support", "rest"]
    assert rules[1].archive == str(tmp_path / "cold.db")


def test_policy_can_be_repeated_after_an_interruption(store: Store, clock: Clock, tmp_path: Path) -> None:
    fill(store, clock)
    seen: list[ExpiryReport] = []

    def stop(report: ExpiryReport) -> None:
        seen.append(report)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.maintenance.apply_policy(policy(tmp_path), batch_size=1, on_batch=stop)
    assert keys(store) >= {"idle", "hidden"}
    store.maintenance.apply_policy(policy(tmp_path))
    assert keys(store) == {"ann", "ann expired", "support", "guest:2", "new"}
    again = store.maintenance.apply_policy(policy(tmp_path))
    assert [(each.sessions, each.put_on_hold, each.held) for each in again] == [(0, 0, {})] * 4


def test_policy_keeps_a_session_that_has_another_hold(store: Store, clock: Clock, tmp_path: Path) -> None:
    fill(store, clock)
    store.conversation("ann").update(hold="case 3")
    store.conversation("idle").update(hold="case 4")
    reports = store.maintenance.apply_policy(policy(tmp_path))
    assert (reports[0].put_on_hold, reports[3].held) == (1, {"idle": "hold: case 4"})
    assert store.conversation("ann").info().hold == "case 3"


def test_policy_of_a_store_for_one_user_reaches_only_this_user(store: Store, clock: Clock, tmp_path: Path) -> None:
    for user in ("ann", "bob"):
        store.create(user, user_id=user, ttl=DAY)
    clock.move(days=2)
    path = policy(tmp_path, "[[rules]]\nname = 'a'\nprefix = 'a'\n[[rules]]\nname = 'b'\nhold = 'case 17'")
    for dry_run in (True, False):
        with pytest.raises(InvalidState, match="hold"):
            store.for_user("ann").maintenance.apply_policy(path, dry_run=dry_run)
    assert keys(store) == {"ann", "bob"}
    path = policy(tmp_path, '[[rules]]\nname = "all"')
    assert [each.sessions for each in store.for_user("ann").maintenance.apply_policy(path)] == [1]
    assert keys(store) == {"bob"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rules]]\nname = 'a'\nolder = '3d'", r"rules\.0\.older: Extra inputs are not permitted"),
        ("[[rules]]\nname = 'a'\n[other]", r"other: Extra inputs"),
        ("[[rules]]\nname = 'a'\nidle = 'soon'", r"rules\.0\.idle: 'soon' is not a duration"),
        ("[[rules]]\nname = 'a'\nidle = 30", r"rules\.0\.idle: '30' is not a duration"),
        ("[[rules]]\nname = 'a'\ndescendants = 'yes'", r"rules\.0\.descendants: "),
        ("[[rules]]\nname = 'a'\nuser = ''", r"rules\.0\.user: "),
        ("[[rules]]\nidle = '3d'", r"rules\.0\.name: Field required"),
        ("[[rules]]\nname = 'a'\nhold = 'x'\nidle = '3d'", "a rule with hold purges nothing: remove idle"),
        ("[[rules]]\nname = 'a'\n[[rules]]\nname = 'b'", "rule 'b' never applies, because rule 'a' matches all"),
        (
            "[[rules]]\nname = 'a'\nprefix = 'x'\n[[rules]]\nname = 'b'\nuser = 'u'\nprefix = 'xy'\nhold = 'case'",
            "'b' never applies, because rule 'a' matches all of its sessions: write the special rule first",
        ),
        ("[[rules]]\nname = 'a'\nuser = 'x'\n[[rules]]\nname = 'a'", "two rules have the same name"),
        ("rules = []", "rules: "),
        ("rules", "is not a policy: "),
    ],
)
def test_invalid_policy_is_refused_before_anything_changes(
    store: Store, clock: Clock, tmp_path: Path, text: str, message: str
) -> None:
    store.create("k", ttl=DAY)
    clock.move(days=2)
    with pytest.raises(InvalidFile, match=message):
        store.maintenance.apply_policy(policy(tmp_path, text))
    with pytest.raises(InvalidFile, match="is not a policy"):
        store.maintenance.apply_policy(tmp_path / "missing.toml")
    assert keys(store) == {"k"}


def test_hidden_session_can_be_revived_until_the_grace_period_has_passed(store: Store, clock: Clock) -> None:
    for key, ttl in (("short", DAY), ("endless", None), ("purged", None)):
        store.create(key, ttl=ttl, messages=messages(1))
        info = store.hide(key)
        assert (info.expires_at, info.ttl_seconds) == (clock.time, None if ttl is None else 86_400)
        assert not store.exists(key)
    with pytest.raises(SessionExpired):
        store.hide("short")
    with pytest.raises(SessionNotFound):
        store.hide("missing")
    clock.move(days=29)
    assert store.expire(grace=30 * DAY).sessions == 0
    assert store.touch("endless").expires_at is None
    assert store.touch("short").expires_at == clock.time + DAY
    clock.move(days=1)
    assert store.expire(grace=30 * DAY, dry_run=True).sessions == 1
    assert store.expire(grace=30 * DAY).sessions == 1
    assert keys(store) == {"short", "endless"}
    with pytest.raises(ValueError, match="grace"):
        store.expire(grace=-DAY)


def test_expired_session_can_be_put_on_hold_and_released(store: Store, clock: Clock) -> None:
    store.create("k", ttl=DAY)
    store.create("other")
    clock.move(days=2)
    conversation = store.conversation("k")
    assert conversation.update(hold="case 17").hold == "case 17"
    with pytest.raises(SessionExpired):
        conversation.update(hold=None, title="x")
    assert [info.key for info in store.iter_sessions(held=True, expired=None)] == ["k"]
    assert (store.count(held=True), store.count(held=True, expired=True), store.count(expired=None)) == (0, 1, 2)
    assert store.list_sessions(held=True, expired=True).items[0].hold == "case 17"
    assert store.expire().held == {"k": "hold: case 17"}
    conversation.update(hold=None)
    assert store.expire().sessions == 1


def test_commands_hide_hold_and_release(url: str, tmp_path: Path) -> None:
    with Store(url) as store:
        for key in ("a", "b", "c"):
            store.create(key, messages=messages(1))
    at = ("--url", url)
    assert run("sessions", "hide", "a", "b", *at).stdout == "hidden: a\nhidden: b\n"
    assert run("sessions", "hold", "a", "case 17", *at).stdout == "on hold: case 17\n"
    assert run("sessions", "hold", "a", "case 17", *at).returncode == 0
    refused = run("sessions", "hold", "a", "case 18", *at)
    assert (refused.returncode, "case 17" in refused.stderr) == (1, True)
    assert run("sessions", "list", "--held", "--expired", *at).stdout.split("\t")[0::9][:1] == ["a"]
    assert run("sessions", "list", "--held", *at).stdout == ""
    assert "on hold: case 17" in run("sessions", "show", "a", "--expired", *at).stdout
    html = tmp_path / "a.html"
    run("sessions", "show", "a", "--expired", "--html", str(html), *at)
    assert "<dt>on hold</dt><dd>case 17</dd>" in html.read_text()
    assert run("expire", "--grace", "30d", *at).stdout.startswith("purged 0 sessions")
    path = policy(tmp_path, '[[rules]]\nname = "c"\nprefix = "c"\nhold = "x"\n[[rules]]\nname = "rest"')
    assert run("expire", "--policy", str(path), "--user", "ann", *at).returncode == 2
    dry = run("expire", "--policy", str(path), "--dry-run", *at)
    assert "c: would put 1 session on hold\n" in dry.stdout
    assert "rest: would purge 1 session, 1 message, " in dry.stdout
    done = run("expire", "--policy", str(path), "--json", *at)
    first, rest = map(json.loads, done.stdout.splitlines())
    assert (first["rule"], first["put_on_hold"], rest["rule"], rest["sessions"]) == ("c", 1, "rest", 1)
    assert (done.returncode, rest["held"]) == (1, {"a": "hold: case 17"})
    assert "a is not purged: hold: case 17\n" in run("expire", *at).stderr
    assert run("sessions", "release", "a", *at).stdout == "released: case 17\n"
    assert run("sessions", "release", "a", *at).stdout == "had no hold\n"
    assert run("expire", *at).returncode == 0
    with Store(create_engine(url)) as store:
        assert keys(store) == {"c"}
