"""One process of test_alternatives_at_once: it replaces the answer to a question, and switches between answers.

Each line that it prints names an answer: `try` before it is stored, `done` afterwards. The first answer has the number
`first`, so that a process which follows a killed one repeats its last answer.
"""

import random
import sys
from contextlib import suppress
from datetime import timedelta

from lango_store import Conversation, LeaseLost, Message, MessageNotFound, Store, TurnInProgress

LEASE = timedelta(milliseconds=300)


def answer(conversation: Conversation, name: str, *, in_turn: bool) -> None:
    """Store an answer once, in a turn or without one."""
    new = Message.assistant(f"answer {name}", id=name)
    if not in_turn:
        conversation.append_messages([new], replace_after=1, keep=True)
        return
    with conversation.turn(name, replace_after=1, keep=True, lease=LEASE, wait=timedelta(minutes=1)) as turn:
        if not turn.replayed:
            turn.append(new)
            turn.usage = {"tokens": 1}


def main(url: str, process: str, first: str) -> None:
    choose = random.Random(f"{process} {first}")
    with Store(url) as store:
        conversation = store.conversation("k")
        print("ready", flush=True)
        number = int(first)
        while True:
            name = f"{process}-{number}"
            print("try", number, flush=True)
            with suppress(LeaseLost):
                answer(conversation, name, in_turn=number % 2 == 1)
                print("done", number, flush=True)
                number += 1
            with suppress(TurnInProgress, MessageNotFound):
                conversation.switch(choose.choice(conversation.alternatives()).id)


if __name__ == "__main__":
    main(*sys.argv[1:])
