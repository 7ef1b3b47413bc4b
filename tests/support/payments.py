"""A program that pays a bill after an approval, and continues after it was killed at any step."""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from lango_store import (
    AlreadyAnswered,
    CallUnknown,
    Message,
    RunningTurn,
    Store,
    Suspension,
    ToolCall,
)

URL = os.environ.get("LANGO_STORE_URL", "sqlite:///agent.db")
LEASE = timedelta(minutes=1)  # longer than a payment takes
WAIT = timedelta(minutes=2)  # longer than the lease
PAYMENTS = Path("payments.jsonl")


def complete(prompt: list[dict[str, Any]]) -> Message:
    """Stand in for a model: ask for a payment, then report its result."""
    if prompt[-1]["role"] == "user":
        call = ToolCall(id="call_0", name="pay", arguments={"euros": 40})
        return Message.assistant(tool_calls=[call])
    return Message.assistant(f"Result of the payment: {prompt[-1]['content']}")


def pay(euros: int, key: str) -> str:
    """Stand in for a bank: pay, and note the idempotency key."""
    with PAYMENTS.open("a") as file:
        file.write(json.dumps({"key": key, "euros": euros}) + "\n")
    return "paid"


def find_payment(key: str) -> str | None:
    """Stand in for a bank: look for the payment with this key."""
    lines = PAYMENTS.read_text().splitlines() if PAYMENTS.exists() else []
    found = any(json.loads(line)["key"] == key for line in lines)
    return "paid" if found else None


def notify(suspension: Suspension) -> None:
    """Stand in for a mail to the person who approves payments."""
    print(suspension.token, flush=True)


def ask(store: Store, key: str, request: str, text: str) -> None:
    """Run a turn in which the model asks for a payment; suspend the call."""
    conversation = store.open(key)
    with conversation.turn(request, lease=LEASE, wait=WAIT) as turn:
        if turn.replayed:
            return
        turn.append(Message.user(text))
        # A killed attempt may have stored the answer of the model.
        if turn.messages[-1].role == "user":
            turn.append(complete(conversation.history()))
        asking = turn.messages[-1]
        calls = [(asking.seq, n) for n in range(len(asking.tool_calls))]
        day = timedelta(days=1)
        notify(conversation.suspensions.create(calls, reason=text, ttl=day))


def answer(store: Store, token: str, approved: bool) -> None:
    """Store the decision of the person, and continue."""
    try:
        suspension = store.suspensions.answer(token, {"approved": approved})
    except AlreadyAnswered as error:  # perhaps by a process that was killed
        stored = store.conversation(error.key).suspensions.list()
        suspension = next(each for each in stored if each.id == error.id)
    proceed(store, suspension)


def proceed(store: Store, suspension: Suspension) -> None:
    """Run the suspended calls, and let the model report their results."""
    conversation = store.conversation(suspension.key)
    with conversation.turn(suspension.id, lease=LEASE, wait=WAIT) as turn:
        if not turn.replayed:
            for seq, position in suspension.calls:
                try:
                    run(turn, seq, position, suspension.answer)
                except CallUnknown as error:
                    settle(store, error)
                    run(turn, seq, position, suspension.answer)
            # A killed attempt may have stored the answer of the model.
            if turn.messages[-1].role == "tool":
                turn.append(complete(conversation.history()))
        print(turn.messages[-1].content)


def run(turn: RunningTurn, seq: int, position: int, answer: Any) -> None:
    """Pay if the person has approved it and no process has paid before."""
    with turn.call(seq, position) as effect:
        if effect.replayed:
            return
        if answer["approved"]:
            effect.output = pay(**effect.call.arguments, key=effect.key)
        else:
            effect.failed = "not approved"


def settle(store: Store, error: CallUnknown) -> None:
    """Ask the bank whether a killed process has paid, and store the result."""
    conversation = store.conversation(error.key)
    result = find_payment(error.effect_key)
    if result is None:
        conversation.calls.resolve(error.seq, error.position, retry=True)
    else:
        conversation.calls.resolve(error.seq, error.position, output=result)


def main(*words: str) -> None:
    with Store(URL, migrate=True) as store:
        match words:
            case "ask", key, request, text:
                ask(store, key, request, text)
            case "answer", token, decision:
                answer(store, token, decision == "yes")
            case _:
                print("payments.py ask KEY REQUEST TEXT | answer TOKEN yes|no")


if __name__ == "__main__":
    main(*sys.argv[1:])
