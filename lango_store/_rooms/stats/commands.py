"""`lango-store stats`: the totals of a store."""

import sys
from typing import Annotated

import typer
from rich import filesize

from lango_store._rooms.stats.metrics import print_metrics, tokens_and_cost
from lango_store._rooms.stats.values import Stats
from lango_store._values.usage import describe
from lango_store.cli.options import JsonOption, UrlOption, example, flag, open_store
from lango_store.cli.output import console, print_bars, print_json, progress, quantity
from lango_store.cli.root import app


@app.command(epilog=example("stats --url sqlite:///agent.db"))
def stats(
    url: UrlOption = None,
    json_: JsonOption = False,
    prometheus: Annotated[
        bool, flag("--prometheus", "Print metrics for the textfile collector of Prometheus.")
    ] = False,
) -> None:
    """Print totals, the agents with the most messages, and when sessions expire.

    "Message tokens" is the sum of the messages' token counts. "Usage of
    turns" is the usage that model providers reported, which `lango-store
    usage` prints by groups.
    """
    if json_ and prometheus:
        raise typer.BadParameter("give one of --json and --prometheus")
    with open_store(url) as store, progress("reading all sessions", quiet=json_ or prometheus):
        totals = store.stats()
        used = [] if json_ else store.usage()
    if json_:
        print_json(totals)
        return
    if prometheus:
        print_metrics(totals, used)
        return
    turns = f"{quantity(totals.turns, 'turn')}, " if totals.turns else ""
    records = f"{quantity(totals.records, 'record')}, " if totals.records else ""
    tokens = f"{quantity(totals.tokens, 'message token')}, " if totals.tokens else ""
    console().print(
        f"{quantity(totals.sessions, 'session')} ({totals.expired:,} expired), {turns}"
        f"{quantity(totals.messages, 'message')}, {records}{tokens}{filesize.decimal(totals.bytes)} on disk",
        soft_wrap=not sys.stdout.isatty(),
    )
    if totals.payload_bytes:
        stored, saved = filesize.decimal(totals.payload_bytes), filesize.decimal(totals.saved_bytes)
        console().print(f"{stored} of payloads, {saved} saved by storing each once per session")
    for detail, remedy in waiting(totals):
        console().print(f"{detail}: {remedy}")
    for row in used:
        console().print(f"usage of turns: {', '.join(describe(tokens_and_cost(row)))}")
    if not totals.sessions:
        return
    agents = [(each.agent_id or "–", each.sessions, each.tokens, each.messages) for each in totals.agents[:20]]
    print_bars("By agent", ("agent", "sessions", "message tokens", "messages"), agents)
    print_bars("By time to expiry", ("expires", "sessions"), totals.expiring.items())


def waiting(totals: Stats) -> list[tuple[str, str]]:
    """Return the work that waits, each with what to do about it."""
    since = "" if totals.owed_since is None else f"{totals.owed_since:%Y-%m-%d %H:%M:%S} UTC"
    work = {
        f"{quantity(totals.owed_turns, 'turn')} owed, the first due at {since}": (
            totals.owed_turns,
            "`lango-store owed` lists them; start workers, or more of them",
        ),
        f"{quantity(totals.given_up_turns, 'turn')} given up": (
            totals.given_up_turns,
            "`lango-store owed` prints the errors; remove the cause, and run `lango-store turns retry`",
        ),
        f"{quantity(totals.unknown_calls, 'unknown tool call')}": (
            totals.unknown_calls,
            "`lango-store calls` lists them; find out which have run, and run `lango-store calls resolve`",
        ),
        f"{quantity(totals.unanswered_suspensions, 'suspension')} without an answer": (
            totals.unanswered_suspensions,
            "`lango-store suspensions` lists them; answer them with `lango-store suspensions answer`",
        ),
    }
    return [(detail, remedy) for detail, (number, remedy) in work.items() if number]
