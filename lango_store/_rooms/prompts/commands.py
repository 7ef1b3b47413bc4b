"""`lango-store sessions prompt` and `check`: prompts, their repairs, and how much of them a cache can reuse."""

import json
from collections import Counter
from itertools import pairwise
from typing import Annotated

import typer

from lango_store import window
from lango_store._rooms.prompts.reading import Budget, simulated
from lango_store.cli.options import Agent, Key, Prefix, UrlOption, User, example, flag, open_store, option
from lango_store.cli.output import printable, quantity
from lango_store.cli.sessions import app as sessions

Format = Annotated[
    window.Format | None,
    option(
        "FORMAT", "Of the API: openai, openai-responses, anthropic or gemini. Default: that of the model, or openai."
    ),
]
Model = Annotated[str | None, option("NAME", "The model that gets the prompt. Default: an unknown one.")]
Provider = Annotated[str | None, option("NAME", "The provider of the model. Default: the vendor of the format.")]


@sessions.command(epilog=example("sessions prompt telegram:42 --reuse --url sqlite:///agent.db"))
def prompt(
    key: Key,
    url: UrlOption = None,
    last: Annotated[int | None, option("NUMBER", "Only this many of the last messages.", min=1)] = None,
    step: Annotated[
        int | None,
        option("NUMBER", "With --last: start the prompt after a seq that is a multiple of this number.", min=1),
    ] = None,
    format: Format = None,
    model: Model = None,
    provider: Provider = None,
    check: Annotated[bool, flag("--check", "Print what differs from the log, and why.")] = False,
    reuse: Annotated[bool, flag("--reuse", "Print which share of the prompts a cache can reuse.")] = False,
) -> None:
    """Print the prompt of the next model call, one JSON message per line.

    A provider accepts the prompt even if the log is damaged. With `--check`,
    print each repair with the seq of its message instead. Exit code 1 if
    there are any.

    With `--reuse`, simulate the prompts that led to the session's window:
    one before each assistant message, and one at the end. Print which share
    of their characters a cache could reuse. A prompt is reused if the next
    one begins with all of it.
    """
    try:
        budget = Budget(last, step=step)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with open_store(url) as store:
        if not reuse:
            conversation = store.conversation(key)
            messages = conversation.history(last=last, step=step, format=format, model=model, provider=provider)
            for line in map(_line, messages.repairs) if check else map(json.dumps, messages):
                print(line)
            raise typer.Exit(1 if check and messages.repairs else 0)
        session, begun = store.get(key), store.conversation(key).calls.list()
    recorded = window.recorded_calls(begun)
    prompts = (
        window.prompt(each, recorded=recorded) for each in simulated(session.messages, session.summary_turn, budget)
    )
    # Without the closing bracket, so that a longer prompt starts with a shorter one.
    texts = [json.dumps(each)[:-1] for each in prompts]
    reused = sum(len(before) for before, after in pairwise(texts) if after.startswith(before))
    total = sum(map(len, texts))
    print(f"{reused / total:.1%} of {total:,} characters reused in {quantity(len(texts), 'prompt')}")


def _line(repair: window.Repair) -> str:
    return f"message {repair.seq}: {repair.kind}: {repair.text}"


@sessions.command(epilog=example("sessions check --model claude-opus-5-5 --url sqlite:///agent.db"))
def check(
    url: UrlOption = None,
    format: Format = None,
    model: Model = None,
    provider: Provider = None,
    agent: Agent = None,
    user: User = None,
    prefix: Prefix = None,
) -> None:
    """List the sessions whose next prompt is repaired or loses thinking.

    Each line has the key of a session, and how often each kind of repair
    occurs. `sessions prompt KEY --check` prints the repairs of a session.
    Exit code 1 if there are any.
    """
    found = False
    with open_store(url) as store:
        for info in store.iter_sessions(agent_id=agent, user_id=user, key_prefix=prefix):
            repairs = store.conversation(info.key).history(format=format, model=model, provider=provider).repairs
            # The next request has the user's next message at its end.
            counts = Counter(repair.kind for repair in repairs if repair.kind != "last answer")
            if counts:
                print(f"{printable(info.key)}\t{', '.join(f'{kind}: {count}' for kind, count in counts.items())}")
                found = True
    raise typer.Exit(1 if found else 0)
