"""The reference names everything that is public, and pages refer only to things that exist."""

import inspect
import pydoc
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from support import command_pages
from support.paths import ROOT

import lango_store
from benchmarks.figures import DATABASES, noted, with_figures, with_table
from benchmarks.figures import PAGES as PAGES_WITH_FIGURES
from lango_store import AsyncConversation, AsyncStore, Conversation, Store, errors, schema, tables, window
from lango_store._engine.url import URL_VARIABLES

DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md"))]


def names_in_code(path: Path) -> set[str]:
    """Return the words of a page that are in inline code or in a directive of mkdocstrings."""
    code = re.findall(r"`[^`\n]+`|^::: .*$", path.read_text(), re.MULTILINE)
    return set(re.findall(r"\w+", " ".join(code)))


def api_pages() -> str:
    return "\n".join(path.read_text() for path in sorted((REFERENCE / "api").glob("*.md")))


def test_reference_lists_every_public_name() -> None:
    directives = set(re.findall(r"^::: lango_store\.([\w.]+)$", api_pages(), re.MULTILINE))
    public = {name for name in lango_store.__all__ if not is_error(name)}
    assert public - directives == set()
    assert {"errors", "schema", "window", "interchange"} <= directives


def test_reference_lists_every_adapter() -> None:
    reference = api_pages()
    adapters = [path.parent for path in (ROOT / "lango_store" / "integrations").glob("*/__init__.py")]
    assert len(adapters) >= 4
    for adapter in adapters:
        exported = re.search(r"^__all__ = \[(.*)\]$", (adapter / "__init__.py").read_text(), re.MULTILINE)
        assert exported is not None, adapter
        for name in re.findall(r"\w+", exported[1]):
            assert f"::: lango_store.integrations.{adapter.name}.{name}\n" in reference


def is_error(name: str) -> bool:
    return isinstance(value := getattr(lango_store, name), type) and issubclass(value, BaseException)


@pytest.mark.parametrize("kind", [Store, Conversation, AsyncStore, AsyncConversation])
def test_methods_page_and_guides_name_every_method(kind: type) -> None:
    pages = [REFERENCE / "methods.md", *sorted((DOCS / "howto").glob("*.md")), *sorted((DOCS / "start").glob("*.md"))]
    documented = set().union(*map(names_in_code, pages))
    public = {name for name in vars(kind) if not name.startswith("_")}
    assert public - documented - {"key"} == set()


def test_pages_name_every_function_of_window_and_schema() -> None:
    documented = set().union(*map(names_in_code, PAGES))
    for module in (window, schema):
        names = getattr(module, "__all__", vars(module))
        public = {name for name in names if inspect.isfunction(getattr(module, name))}
        own = {name for name in public if getattr(module, name).__module__.startswith(module.__name__)}
        assert {name for name in own if not name.startswith("_")} - documented == set()


def test_reference_lists_every_error() -> None:
    own = {name for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__}
    defined = {name for name in own if isinstance(getattr(errors, name), type) and not name.startswith("_")}
    assert defined - names_in_code(REFERENCE / "errors.md") == set()


def test_reference_lists_every_column() -> None:
    text = (REFERENCE / "tables.md").read_text()
    sections = dict(zip(*[iter(re.split(r"^## (\w+)$", text, flags=re.MULTILINE)[1:])] * 2, strict=True))
    for table in tables.Base.metadata.sorted_tables:
        same = re.findall(r"the other columns of\s+\[(\w+)\]", sections[table.name])
        documented = set(re.findall(r"`(\w+)`", "".join(sections[each] for each in [table.name, *same])))
        assert {column.name for column in table.columns} - documented == set(), table.name


def test_command_page_is_up_to_date() -> None:
    assert command_pages.PAGE.read_text() == command_pages.page(), "run `python tests/support/command_pages.py`"


def test_pages_name_every_command() -> None:
    guides = "\n".join(path.read_text() for path in PAGES if path != command_pages.PAGE)
    assert [name for name, _ in command_pages.commands() if name not in guides] == []


@pytest.mark.slow
def test_pages_name_every_environment_variable() -> None:
    documented = "\n".join(path.read_text() for path in PAGES)
    variables = set(URL_VARIABLES)
    for path in [*(ROOT / "lango_store").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), ROOT / "Makefile"]:
        variables |= set(re.findall(r"\bLANGO_STORE_[A-Z_]+\b", path.read_text()))
    assert {name for name in variables if name not in documented} == set()


def test_navigation_lists_every_page() -> None:
    configured = (ROOT / "mkdocs.yml").read_text()
    existing = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert {page for page in existing if page not in configured} == set()
    assert set(re.findall(r"[\w/-]+\.md", configured)) <= existing


def test_links_on_the_pages_have_existing_targets() -> None:
    broken = []
    for path in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", path.read_text()):
            name, _, anchor = target.partition("#")
            linked = path.parent / name if name else path
            if not linked.exists() or (anchor and anchor not in anchors(linked)):
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert broken == []


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page: its headings, and the names that mkdocstrings documents there."""
    text = path.read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    documented = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    members = {f"{name}.{member}" for name in documented for member in dir(pydoc.locate(name))}
    return (
        {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
        | {*documented}
        | members
    )


def test_promises_name_existing_tests() -> None:
    promised = re.findall(r"`([a-z_/]+\.py)::(test_\w+)`", (DOCS / "why" / "promises.md").read_text())
    assert len(promised) > 20
    for file, name in promised:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), (file, name)


def test_every_promise_has_a_limit_and_a_test() -> None:
    promised, _, _ = (DOCS / "why" / "promises.md").read_text().partition("\n## Not promised\n")
    _, *promises = re.split(r"^- ", promised, flags=re.MULTILINE)
    assert len(promises) > 40
    for promise in promises:
        assert "**Limit:**" in promise, promise.splitlines()[0]
        assert "::test_" in promise, promise.splitlines()[0]


def test_landing_page_shows_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (DOCS / "index.md").read_text().startswith(f"# lango_store {project['version']}\n")


def test_site_is_built_with_strict_checks() -> None:
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text())["strict"] is True


@pytest.mark.parametrize("page", PAGES_WITH_FIGURES, ids=lambda page: page.name)
def test_pages_show_the_figures_that_were_measured(page: Path) -> None:
    figures, text = noted(), page.read_text()
    assert all(set(each) == set(DATABASES) for each in figures.values())
    assert with_figures(text, figures) == text
    shown = [what for what in figures if f"| {what} | " in text]
    assert len(shown) >= 4
    other = {what: dict.fromkeys(DATABASES, 99.0) for what in figures}
    assert with_figures(text, other).count("| 99.00 | 99.00 |") == len(shown)


@pytest.mark.parametrize("database", DATABASES)
def test_table_of_other_stores_on_the_page_can_be_replaced(database: str) -> None:
    text = PAGES_WITH_FIGURES[0].read_text()
    changed = with_table(text, database, [["store", "load 100"], ["lango_store", "1.50"]])
    assert f"### {database}\n\n| store | load 100 |\n| --- | --- |\n| lango_store | 1.50 |\n\n" in changed
