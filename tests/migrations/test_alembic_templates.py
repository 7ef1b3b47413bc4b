"""The store in Alembic projects of each published template, with tables and batch operations of the application."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.util import CommandError
from support.databases import MakeDatabase

from lango_store import LangoStoreError, Store, create_engine, schema
from lango_store.schema.running import script_directory
from lango_store.tables import SCHEMA_REVISION

# Alembic before 1.16 has no templates with pyproject.toml.
TEMPLATES = [
    template
    for template in ("generic", "multidb", "async", "pyproject", "pyproject_async")
    if Path(Config().get_template_directory(), template).is_dir()
]

REVISION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "{number}", {before}


def upgrade(engine_name=""):
    {up}


def downgrade(engine_name=""):
    {down}
"""

TABLES = """op.create_table("ticket", sa.Column("number", sa.Integer, primary_key=True))
    op.create_table(
        "note",
        sa.Column("text", sa.Text),
        sa.Column("ticket", sa.Integer, sa.ForeignKey("ticket.number", ondelete="CASCADE")),
    )
    op.execute("INSERT INTO ticket VALUES (1)")
    op.execute("INSERT INTO note VALUES ('kept', 1)")"""

BATCH = """with op.batch_alter_table(
        "ticket", recreate="always" if op.get_context().dialect.name == "sqlite" else "never"
    ) as batch:
        batch.{}"""


class Project:
    """An Alembic project of a template, with a line for the store in its env.py."""

    def __init__(self, folder: Path, template: str, url: str, line: str = "schema.upgrade_in_env(context)") -> None:
        made = Config(str(folder / "alembic.ini"))
        made.toml_file_name = str(folder / "pyproject.toml")
        command.init(made, str(folder / "alembic"), template=template)
        env = folder / "alembic" / "env.py"
        text = env.read_text().replace("context.run_migrations(", f"{line}; context.run_migrations(")
        text = text.replace("target_metadata=", "include_name=schema.include_name, target_metadata=")
        text = text.replace("target_metadata = None", "from host_metadata import METADATA as target_metadata")
        if template == "multidb":
            mapping = "from host_metadata import METADATA\ntarget_metadata = {'one': METADATA}"
            text = text.replace("target_metadata = {}", mapping)
        env.write_text(f"from lango_store import schema\n{text}")
        self.versions = folder / "alembic" / "versions"
        self.config = Config()
        self.config.set_main_option("script_location", str(folder / "alembic"))
        self.config.set_main_option("path_separator", "os")
        self.config.set_main_option("databases", "one")
        if "async" in template:
            url = url.replace("sqlite:", "sqlite+aiosqlite:")
        self.config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
        self.config.set_section_option("one", "sqlalchemy.url", url.replace("%", "%%"))

    def add(self, number: str, before: str | None, up: str, down: str) -> None:
        text = REVISION.format(number=number, before=repr(before), up=up, down=down)
        (self.versions / f"{number}.py").write_text(text)


@pytest.fixture
def metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module with the application's metadata, whose table refers to the store's sessions."""
    (tmp_path / "host_metadata.py").write_text(
        "import sqlalchemy as sa\n"
        "from lango_store.tables import SessionRow\n"
        "METADATA = sa.MetaData()\n"
        "sa.Table('ticket', METADATA, sa.Column('number', sa.Integer, primary_key=True), sa.Column('title', sa.Text))\n"
        "sa.Table('note', METADATA, sa.Column('text', sa.Text),\n"
        "    sa.Column('ticket', sa.Integer, sa.ForeignKey('ticket.number', ondelete='CASCADE')))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)  # the template multidb writes its scripts to the current folder
    yield
    sys.modules.pop("host_metadata", None)


def notes(url: str) -> list[str]:
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        texts = list(connection.execute(sa.text("SELECT text FROM note")).scalars())
    engine.dispose()
    return texts


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.usefixtures("metadata")
def test_alembic_upgrade_migrates_the_store_and_keeps_rows_of_child_tables(
    tmp_path: Path, empty_url: str, template: str
) -> None:
    project = Project(tmp_path / "host", template, empty_url)
    project.add("a", None, TABLES, "op.drop_table('note'); op.drop_table('ticket')")
    project.add("b", "a", BATCH.format("add_column(sa.Column('title', sa.Text))"), BATCH.format("drop_column('title')"))

    command.current(project.config)
    with pytest.raises(CommandError, match="not up to date"):
        command.check(project.config)
    assert schema.current(empty_url) is None

    command.upgrade(project.config, "head")
    assert schema.check(empty_url) == []
    assert notes(empty_url) == ["kept"]
    command.check(project.config)
    with Store(empty_url) as store:
        store.create("k")

    command.downgrade(project.config, "a")
    assert notes(empty_url) == ["kept"]
    with Store(empty_url) as store:
        assert store.exists("k")


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.usefixtures("metadata")
def test_alembic_upgrade_with_sql_writes_a_script_that_creates_the_store(
    tmp_path: Path, empty_url: str, template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project(tmp_path / "host", template, empty_url)
    project.add("a", None, TABLES, "pass")
    capsys.readouterr()  # the messages of `alembic init`
    command.upgrade(project.config, "head", sql=True)
    script = Path("one.sql").read_text() if template == "multidb" else capsys.readouterr().out
    assert schema.current(empty_url) is None

    engine = create_engine(empty_url)
    raw = engine.raw_connection()
    if engine.dialect.name == "sqlite":
        raw.driver_connection.executescript(script)  # type: ignore[union-attr]
    else:
        raw.driver_connection.autocommit = True  # type: ignore[union-attr]
        raw.cursor().execute(script)
    raw.close()
    engine.dispose()
    assert schema.check(empty_url) == []
    assert notes(empty_url) == ["kept"]


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.usefixtures("metadata")
def test_upgrade_on_a_connection_without_a_transaction_leaves_alembic_to_commit(
    tmp_path: Path, empty_url: str, template: str
) -> None:
    line = "None if context.is_offline_mode() else schema.upgrade(context.get_bind())"
    project = Project(tmp_path / "host", template, empty_url, line)
    env = tmp_path / "host" / "alembic" / "env.py"
    moved = env.read_text().replace(f"{line}; ", "")
    configure = "    context.configure(connection=connection"
    moved = moved.replace(configure, f"    schema.upgrade(connection)\n{configure}")
    env.write_text(moved if "async" in template else env.read_text())
    project.add("a", None, TABLES, "pass")
    command.upgrade(project.config, "head")
    assert schema.check(empty_url) == []
    assert notes(empty_url) == ["kept"]


@pytest.mark.slow
@pytest.mark.usefixtures("metadata")
def test_autogenerate_writes_the_type_of_a_foreign_key_to_a_session_with_public_names(
    tmp_path: Path, empty_url: str
) -> None:
    project = Project(tmp_path / "host", "generic", empty_url)
    with (tmp_path / "host_metadata.py").open("a") as file:
        file.write(
            "key = sa.Column('key', sa.ForeignKey(SessionRow.__table__.c.key), primary_key=True)\n"
            "sa.Table('linked', METADATA, key)\n"
        )
    command.upgrade(project.config, "head")
    written = command.revision(project.config, "tables", autogenerate=True)
    text = Path(written.path).read_text()  # type: ignore[union-attr]
    assert "lango_store" not in text
    command.upgrade(project.config, "head")
    command.check(project.config)


def test_upgrade_in_env_refuses_a_transaction_with_foreign_keys_on(make_sqlite: MakeDatabase) -> None:
    engine = create_engine(make_sqlite())
    context = EnvironmentContext(Config(), script_directory())
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE host (n INTEGER)")
        connection.exec_driver_sql("INSERT INTO host VALUES (1)")
        context.configure(connection=connection)
        with pytest.raises(LangoStoreError, match="before you write"):
            schema.upgrade_in_env(context)
    engine.dispose()


def test_revision_of_the_application_can_name_the_start_of_the_script(empty_url: str) -> None:
    engine = create_engine(empty_url)
    statements: list[str] = []
    mock = sa.create_mock_engine(engine.url, lambda statement, *_, **__: statements.append(str(statement)))
    assert schema.upgrade(mock, SCHEMA_REVISION, start=SCHEMA_REVISION) is None  # type: ignore[arg-type]
    assert "CREATE TABLE" not in "".join(statements)
    assert schema.upgrade(mock, SCHEMA_REVISION) is None  # type: ignore[arg-type]
    assert "CREATE TABLE lango_session" in "".join(statements)
    engine.dispose()
