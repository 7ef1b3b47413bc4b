"""`lango-store sessions prompt`: print a prompt, or how much of the prompts a provider's cache can reuse."""

import json
from itertools import pairwise
from typing import Annotated

import typer

from lango_store import window
from lango_store._operations.prompts import Budget, simulated
from lango_store._values.session import Session
from lango_store.cli.options import UrlOption, open_store
from lango_store.cli.output import quantity


def prompt(
    key: Annotated[str, typer.Argument(help="Session key.")],
    url: UrlOption = None,
    last: Annotated[
        int | None, typer.Option(metavar="NUMBER", min=1, help="Only this many of the last messages.")
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER", min=1, help="With --last: move the start of the prompt in steps of this many seqs."
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", min=1, help="Only as many of the last messages as fit in this many tokens."),
    ] = None,
    step_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            min=1,
            help="With --max-tokens: move the start of the prompt in steps of this many tokens.",
        ),
    ] = None,
    reuse: Annotated[
        bool,
        typer.Option(
            "--reuse", help="Print how much of the prompts of all model calls a provider's cache could reuse."
        ),
    ] = False,
) -> None:
    """Print the prompt of the next model call, one JSON message per line.

    With `--reuse`, print how many characters of the prompts of this window
    were at the same position in the previous prompt. A provider's cache can
    recognize those; an answer is taken for a model call.
    """
    try:
        budget = Budget(last, max_tokens, step, step_tokens)
        with open_store(url) as store:
            if reuse:
                texts = _texts(store.conversation(key).get(), budget)
            else:
                for message in store.conversation(key).history(**vars(budget)):
                    print(json.dumps(message))
                return
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    total = sum(map(len, texts))
    reused = sum(len(before) for before, after in pairwise(texts) if after.startswith(before))
    share = reused / total if total else 0
    print(f"{share:.1%} of {total:,} characters reused in {quantity(len(texts), 'prompt')}")


def _texts(session: Session, budget: Budget) -> list[str]:
    """Return the prompts of a session as JSON, without the closing bracket so that one can start with another."""
    calls = simulated(session.messages, session.summary_turn, budget, session.token_count, None)
    return [json.dumps(window.as_prompt(window.close_calls(messages)))[:-1] for messages in calls]
