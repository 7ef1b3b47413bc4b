"""The database and its backups have the digest of a token's secret, not the secret."""

import hashlib
from pathlib import Path

import sqlalchemy as sa

from lango_store import Store
from lango_store.interchange import export


def stored_text(store: Store, folder: Path) -> str:
    """Return all rows of all tables, a backup and, on SQLite, the bytes of the file as one text."""
    with store.engine.connect() as connection:
        tables = sa.MetaData()
        tables.reflect(connection)
        rows = [repr(row) for table in tables.sorted_tables for row in connection.execute(sa.select(table))]
    (done,) = export(store, folder, "backup", everything=True)
    assert done.path is not None, done.error
    files = [Path(done.path)]
    if store.engine.dialect.name == "sqlite":
        files += Path(str(store.engine.url.database)).parent.glob("*.db*")
    return "\n".join([*rows, *(file.read_bytes().decode("latin-1") for file in files)])


def test_secret_of_token_is_not_stored(store: Store, tmp_path: Path) -> None:
    conversation = store.open("k")
    tokens = [str(conversation.suspensions.create(state={"step": n}, reason="Pay?").token) for n in range(2)]
    store.suspensions.answer(tokens[0], "yes")
    stored = stored_text(store, tmp_path / "backup")
    for token in tokens:
        secret = token.split(".")[1]
        assert hashlib.sha256(secret.encode()).hexdigest() in stored
        assert secret not in stored
