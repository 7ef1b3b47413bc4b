"""A table of notes on messages, which tests add to a copy of the package. Run it there to print what becomes of notes.

It needs the URL of a migrated, empty database, and an empty folder.
"""

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

NOTE = '''

class NoteRow(Base, table=True):
    """A note on a message."""

    __tablename__ = "lango_note"
    __table_args__ = (
        sa.PrimaryKeyConstraint("session_key", "n", name="pk_lango_note"),
        session_reference("fk_lango_note_session"),
        stored("note", name="note {n}", since="0111", of_message="message_seq", redacted=("text",)),
    )

    session_key: str = key()
    n: int = Field(sa_column=sa.Column(sa.BigInteger, nullable=False, autoincrement=False))
    message_seq: int | None = Field(default=None, sa_type=sa.BigInteger)
    text: str | None = Field(default=None, sa_type=TEXT)
'''
"""The lines to append to `lango_store/tables/core.py`."""


def run(url: str, folder: Path) -> dict[str, Any]:
    """Change sessions with notes in each way, and return the remaining notes after each."""
    from lango_store import Message, Store, interchange, schema
    from lango_store.interchange.copying import copy
    from lango_store.tables import Base

    notes = Base.metadata.tables["lango_note"]
    store = Store(url, keep_removed=timedelta(days=1))
    notes.create(store.engine)
    target, archive = (Store(f"sqlite:///{folder / name}") for name in ("target.db", "archive.db"))
    for other in (target, archive):
        schema.upgrade(other.engine)
        notes.create(other.engine)

    def rows(key: str, of: Store = store) -> list[list[Any]]:
        query = notes.select().where(notes.c.session_key == key).order_by(notes.c.n)
        with of.engine.connect() as connection:
            return [[row.message_seq, row.text] for row in connection.execute(query)]

    def note(key: str, *seqs: int | None) -> None:
        with store.engine.begin() as connection:
            for seq in seqs:
                row = {"session_key": key, "n": seq or 99, "message_seq": seq, "text": f"on {seq}"}
                connection.execute(notes.insert(), row)

    results: dict[str, Any] = {}
    new = Message.user("new")

    def case(name: str, change: Callable[[Any], Any], then: Callable[[Any], Any] | None = None) -> None:
        session = store.open(name, messages=[Message.user(str(n)) for n in range(1, 4)])
        note(name, 1, 2, 3, None)
        change(session)
        results[name] = rows(name)
        if then is not None:
            then(session)
            results[f"{name}, then"] = rows(name)

    case("delete", lambda session: session.edits.delete(2), lambda session: session.versions.undo())
    case("pop", lambda session: session.pop_message())
    case("truncate", lambda session: session.truncate(after=1))
    case("clear", lambda session: session.clear())
    case("redact", lambda session: session.edits.redact(2))
    case("update", lambda session: session.edits.update(2, new), lambda session: session.versions.undo())

    def compact(session: Any) -> None:
        session.compact(lambda _: Message.user("summary"))
        note(session.key, session.messages()[0].seq)

    case("compaction", compact, lambda session: session.versions.undo())
    case("discard", lambda session: session.compact(lambda _: Message.user("summary"), discard=True))

    whole = store.open("whole", messages=[Message.user(str(n)) for n in range(1, 4)])
    note("whole", 1, 2, 3, None)
    results["fork"] = rows(whole.fork("fork").key)
    results["fork upto"] = rows(whole.fork("fork upto", upto=1).key)
    whole.edits.delete(3)
    results["fork as_of"] = rows(whole.fork("fork as_of", as_of=2).key)

    interchange.export(store, folder / "backup.jsonl", "backup", keys=["whole"])
    interchange.import_path(target, folder / "backup.jsonl")
    results["import"] = rows("whole", target)
    target.delete("whole")
    assert copy(store, target).complete
    results["copy"] = rows("whole", target)

    note("whole", 7)
    findings = [each for each in store.maintenance.examine() if each.name == "row without message"]
    results["examine"] = [[each.subject, each.detail] for each in findings]
    store.maintenance.examine(repair=True)
    results["repair"] = rows("whole")

    store.expire(older_than=timedelta(0), key_prefix="whole", archive=folder / "archive.db")
    results["archive"] = rows("whole")
    store.restore("whole", folder / "archive.db")
    results["restore"] = rows("whole")
    return results


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], Path(sys.argv[2]))))
