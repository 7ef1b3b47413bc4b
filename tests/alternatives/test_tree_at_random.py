"""Random appends, edits, regenerations, switches, undos, compactions and restores, compared with a plain tree."""

import os
import random
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import message
from support.session_checks import assert_sound

from lango_store import Conversation, InvalidCut, Message, Store
from lango_store.interchange import export, import_path

SEEDS = int(os.environ.get("LANGO_STORE_TREES", "12"))
STEPS = 40


@dataclass
class Entry:
    """A message of the tree; `upto` of a summary is the seq up to which it replaces messages."""

    seq: int
    text: str
    upto: int | None = None
    discards: bool = False


@dataclass
class Branch:
    """A part of the tree that is not shown."""

    after: int
    within: int | None
    entries: list[Entry]
    turns: dict[int, int] = field(default_factory=dict)


@dataclass
class Tree:
    """The model: the shown path, and the branches by the seq of their first entry. `turns` have the usage by seq."""

    shown: list[Entry] = field(default_factory=list)
    branches: dict[int, Branch] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)

    @property
    def usage(self) -> int:
        return sum(sum(turns.values()) for turns in (self.turns, *(each.turns for each in self.branches.values())))

    def rest(self, after: int) -> list[Entry]:
        return [each for each in self.shown if each.seq > after and not self._stays(each, after)]

    @staticmethod
    def _stays(entry: Entry, after: int) -> bool:
        return entry.upto is not None and after > 0 and entry.upto <= after

    def end(self, seq: int) -> int:
        ends = [each.seq if each.upto is None else each.upto for each in self.shown]
        return max([each for each in ends if each <= seq], default=0)

    def is_refused(self, after: int) -> bool:
        return after > 0 and any(each.discards and (each.upto or 0) > after for each in self.shown)

    def cut(self, after: int, *, keep: bool) -> None:
        rest = self.rest(after)
        stays = {each.seq for each in self.shown if each not in rest}
        turns = {seq: tokens for seq, tokens in self.turns.items() if seq > after and seq not in stays}
        if keep and not rest:
            return
        if keep:
            for branch in self.branches.values():
                if branch.within is None and branch.after > after:
                    branch.within = rest[0].seq
            self.branches[rest[0].seq] = Branch(self.end(after), None, rest, turns)
        self.shown = [each for each in self.shown if each not in rest]
        self.turns = {seq: tokens for seq, tokens in self.turns.items() if seq not in turns}
        if not keep:
            self.clean()

    def clean(self, begin: int = 0) -> None:
        """Delete the branches that the shown path does not reach any more."""
        end = self.end(2**62)
        gone = [
            first for first, each in self.branches.items() if each.within is None and not begin <= each.after <= end
        ]
        for first in gone:
            self.drop(first)

    def drop(self, first: int) -> None:
        for nested in [each for each, branch in self.branches.items() if branch.within == first]:
            self.drop(nested)
        del self.branches[first]

    def path(self, first: int) -> list[int]:
        within = self.branches[first].within
        return [*([] if within is None else self.path(within)), first]

    def switch(self, first: int) -> bool:
        for each in self.path(first):
            branch = self.branches[each]
            if self.is_refused(branch.after):
                return False
            self.cut(branch.after, keep=True)
            for nested in self.branches.values():
                if nested.within == each:
                    nested.within = None
            del self.branches[each]
            self.shown = sorted([*self.shown, *branch.entries], key=lambda entry: entry.seq)
            self.turns |= branch.turns
        return True

    @property
    def window(self) -> list[str]:
        summaries = [each for each in self.shown if each.upto is not None]
        if not summaries:
            return [each.text for each in self.shown]
        last = max(summaries, key=lambda each: each.seq)
        assert last.upto is not None
        later = [each for each in self.shown if each.seq > last.upto and each is not last]
        return [each.text for each in (last, *later)]


def is_beginning(path: tuple[str, ...], others: list[tuple[str, ...]]) -> bool:
    return any(each != path and each[: len(path)] == path for each in others)


class Run:
    """One random run on a session and its model."""

    def __init__(self, store: Store, conversation: Conversation, seed: int) -> None:
        self.store, self.conversation, self.tree = store, conversation, Tree()
        self.random, self.count = random.Random(seed), 0

    def text(self) -> str:
        self.count += 1
        return f"text {self.count}"

    def position(self) -> int:
        return self.random.choice([0, *(each.seq for each in self.tree.shown)])

    def append(self, *, replace_after: int | None = None, keep: bool = False) -> None:
        texts = [self.text() for _ in range(self.random.randint(0 if keep else 1, 3))]
        new = [message(text, id=text) for text in texts]
        refused = replace_after is not None and self.tree.is_refused(replace_after)
        try:
            stored = self.conversation.append_messages(new, replace_after=replace_after, keep=keep)
        except InvalidCut:
            assert refused
            return
        assert not refused
        if replace_after is not None:
            self.tree.cut(replace_after, keep=keep)
        self.tree.shown += [Entry(each.seq, str(each.content)) for each in stored]

    def regenerate(self) -> None:
        self.append(replace_after=self.position(), keep=True)

    def replace(self) -> None:
        self.append(replace_after=self.position())

    def turn(self) -> None:
        text, tokens = self.text(), self.random.randint(1, 9)
        turn = self.conversation.save_turn([message(text)], {"tokens": tokens}, id=text)
        self.tree.shown.append(Entry(turn.first_seq, text))
        self.tree.turns[turn.first_seq] = tokens

    def repeat(self) -> None:
        """Append the id of any message of the tree again."""
        entries = [*self.tree.shown, *(each for branch in self.tree.branches.values() for each in branch.entries)]
        named = [each for each in entries if each.upto is None and each.seq not in self.turns_of_tree()]
        if named and (chosen := self.random.choice(named)).text in self.ids():
            again = self.conversation.append_message(message("other", id=chosen.text))
            assert (again.seq, again.replayed) == (chosen.seq, True)

    def turns_of_tree(self) -> set[int]:
        return {*self.tree.turns, *(seq for each in self.tree.branches.values() for seq in each.turns)}

    def ids(self) -> set[str]:
        return {str(each.id) for first in self.branch_ids() for each in self.log(first)} | {
            str(each.id) for each in self.conversation.all_messages()
        }

    def branch_ids(self) -> list[int]:
        return [each for each in self.tree.branches if self.reachable(each)]

    def reachable(self, first: int) -> bool:
        return not self.tree.is_refused(self.tree.branches[self.tree.path(first)[0]].after)

    def log(self, first: int) -> list[Message]:
        return list(self.conversation.get(alternative=first, records=True).messages)

    def switch(self) -> None:
        if self.tree.branches:
            first = self.random.choice([*self.tree.branches])
            if self.reachable(first):
                assert self.conversation.switch(first) is True
                assert self.tree.switch(first)
                assert self.conversation.switch(first) is False
            else:
                with pytest.raises(InvalidCut):
                    self.conversation.switch(first)

    def drop(self) -> None:
        if self.tree.branches:
            first = self.random.choice([*self.tree.branches])
            assert self.conversation.drop_alternative(first) is True
            self.tree.drop(first)

    def edit(self) -> None:
        plain = [each for each in self.tree.shown if each.upto is None]
        if plain:
            chosen = self.random.choice(plain)
            chosen.text = f"{chosen.text} edited"
            self.conversation.edits.update(chosen.seq, message(chosen.text))

    def delete(self) -> None:
        plain = [each for each in self.tree.shown if each.upto is None]
        if plain:
            chosen = self.random.choice(plain)
            self.conversation.edits.delete(chosen.seq)
            self.tree.shown.remove(chosen)  # the usage of its turn stays
            self.tree.clean()

    def truncate(self) -> None:
        after = self.position()
        if not self.tree.is_refused(after):
            self.conversation.truncate(after=after)
            self.tree.cut(after, keep=False)

    def truncate_and_undo(self) -> None:
        after, shown, turns = self.position(), self.tree.shown, self.tree.turns
        if not self.tree.is_refused(after) and self.tree.rest(after):
            self.conversation.truncate(after=after)
            self.tree.cut(after, keep=False)
            assert self.conversation.versions.undo() is not None
            self.tree.shown, self.tree.turns = shown, turns

    def compact(self, *, discard: bool = False) -> None:
        text, upto = self.text(), self.conversation.info().last_seq
        compaction = self.conversation.compact(lambda _: message(text, role="system"), discard=discard)
        if compaction is None:
            return
        if discard:
            self.tree.shown = [each for each in self.tree.shown if each.seq > upto]
        self.tree.shown.append(Entry(compaction.summary[0].seq, text, upto, discard))
        if discard:
            self.tree.turns = {compaction.summary[0].seq: sum(self.tree.turns.values())}
            self.tree.clean(begin=upto)

    def expire(self) -> None:
        self.store.expire()

    def check(self) -> None:
        conversation, tree = self.conversation, self.tree
        assert sum(conversation.total_usage().values()) == tree.usage
        assert [each.content for each in conversation.messages()] == tree.window
        assert [(each.seq, each.content) for each in conversation.all_messages()] == [
            (each.seq, each.text) for each in tree.shown
        ]
        found = conversation.alternatives()
        aside = {each.id: each for each in found if not each.is_shown}
        in_log = {first: each for first, each in tree.branches.items() if each.within is None}
        assert {first: each.after_seq for first, each in aside.items()} == {
            first: each.after for first, each in in_log.items()
        }
        for first, each in aside.items():
            branch = tree.branches[first]
            assert (each.first.seq, each.first.text) == (first, branch.entries[0].text)
            assert (each.last.seq, each.last.text) == (branch.entries[-1].seq, branch.entries[-1].text)
            assert each.message_count == len(branch.entries)
            assert each.alternatives == sum(other.within == first for other in tree.branches.values())
        shown = {each.after_seq: each.id for each in found if each.is_shown}
        continued = {after: tree.rest(after) for after in {each.after for each in in_log.values()}}
        assert shown == {after: rest[0].seq for after, rest in continued.items() if rest}
        for first in self.branch_ids():
            copied = Tree([*tree.shown], {key: Branch(**vars(each)) for key, each in tree.branches.items()})
            copied.switch(first)
            assert [each.content for each in conversation.get(alternative=first).messages] == copied.window

    def places(self) -> set[tuple[str, ...]]:
        """Return each path of the tree that is no beginning of another, with summaries after what they replace."""
        found = []
        for first in (None, *self.tree.branches):
            copied = Tree([*self.tree.shown], {key: Branch(**vars(each)) for key, each in self.tree.branches.items()})
            for each in self.tree.path(first) if first is not None else ():
                branch = copied.branches[each]
                copied.shown = [entry for entry in copied.shown if (entry.upto or entry.seq) <= branch.after]
                copied.shown += branch.entries
            copied.shown.sort(key=lambda entry: (entry.upto or entry.seq, entry.seq))
            found.append(tuple(entry.text for entry in copied.shown))
        return {path for path in found if path and not is_beginning(path, found)}

    def check_exports(self, other: Store, folder: Path) -> None:
        """Compare the tree with what an import of an export to other products has."""
        for name in ("chatgpt", "open-webui"):
            export(self.store, folder, name, keys=["k"])
            (report,) = import_path(other, folder / f"{name}.json")
            assert report.error is None
            conversation = other.conversation(f"{name}:k")
            with other.engine.connect() as connection:
                ids = connection.execute(
                    sa.text("SELECT first_seq FROM lango_alternative WHERE session_key = :key"),
                    {"key": conversation.key},
                ).scalars()
                paths = [conversation.all_messages(), *(conversation.get(alternative=id).messages for id in ids)]
            found = [tuple(str(each.content) for each in path) for path in paths]
            assert {path for path in found if path and not is_beginning(path, found)} == self.places()
            shown = sorted(self.tree.shown, key=lambda entry: (entry.upto or entry.seq, entry.seq))
            if shown or name == "chatgpt":  # Open WebUI has no conversation without messages
                assert found[0] == tuple(each.text for each in shown)


OPERATIONS = {
    Run.append: 4,
    Run.regenerate: 6,
    Run.turn: 3,
    Run.switch: 6,
    Run.repeat: 2,
    Run.replace: 1,
    Run.drop: 1,
    Run.edit: 1,
    Run.delete: 1,
    Run.truncate: 1,
    Run.truncate_and_undo: 2,
    Run.compact: 1,
    Run.expire: 1,
}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_path_of_the_tree_reads_back_equal(make_database: MakeDatabase, tmp_path: Path, seed: int) -> None:
    keep_removed = timedelta(days=1)
    with Store(make_database(), keep_removed=keep_removed) as store, Store(make_database()) as other:
        run = Run(store, store.open("k"), seed)
        earlier: dict[int, list[str]] = {}
        for _ in range(STEPS):
            (operation,) = run.random.choices([*OPERATIONS], [*OPERATIONS.values()])
            if run.random.random() < 0.02:
                run.compact(discard=True)
            operation(run)
            run.check()
            earlier[run.conversation.info().last_seq] = run.tree.window
        assert_sound(store)
        assert {at: [each.content for each in run.conversation.get(as_of=at).messages] for at in earlier} == earlier
        fork = run.conversation.fork()
        assert [each.content for each in fork.messages()] == run.tree.window
        assert fork.alternatives() == []
        run.check_exports(store, tmp_path)
        for name in ("chatgpt", "open-webui"):
            store.delete(f"{name}:k")
        usage = store.usage()
        export(store, tmp_path, "backup", everything=True)
        import_path(other, tmp_path / "lango_store.jsonl")
        run.store, run.conversation = other, other.conversation("k")
        run.check()
        assert_sound(other)
        assert [(each.turns, each.usage) for each in other.usage()] == [(each.turns, each.usage) for each in usage]
        for first in [*run.tree.branches]:
            if first in run.tree.branches and run.reachable(first):
                run.conversation.switch(first)
                run.tree.switch(first)
                run.check()
        assert_sound(other)
