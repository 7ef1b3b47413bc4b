"""What is public stands in the documentation, and what stands there is there."""

import re
from pathlib import Path

import pytest
import yaml
from support import command_pages
from support.paths import ROOT

import lango_store
from benchmarks.figures import DATABASES, noted, with_figures
from benchmarks.figures import PAGES as PAGES_WITH_FIGURES
from lango_store import AsyncConversation, AsyncStore, Conversation, Store, errors, schema, tables, window
from lango_store._engine.url import URL_VARIABLES

DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md"))]


def words(path: Path) -> set[str]:
    """Return the names that a page sets as code, and the headings that have one."""
    code = re.findall(r"`[^`\n]+`|^::: .*$", path.read_text(), re.MULTILINE)
    return set(re.findall(r"\w+", " ".join(code)))


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_public_name_is_in_the_reference() -> None:
    directives = set(re.findall(r"^::: lango_store\.([\w.]+)$", (REFERENCE / "api.md").read_text(), re.MULTILINE))
    named = {name for name in lango_store.__all__ if not is_error(name)}
    assert named - directives == set()
    assert {"errors", "schema", "window", "interchange"} <= directives


def test_every_adapter_is_in_the_reference() -> None:
    reference = (REFERENCE / "api.md").read_text()
    adapters = [path.parent for path in (ROOT / "lango_store" / "integrations").glob("*/__init__.py")]
    assert len(adapters) >= 4
    for adapter in adapters:
        exported = re.search(r"^__all__ = \[(.*)\]$", (adapter / "__init__.py").read_text(), re.MULTILINE)
        assert exported is not None, adapter
        for name in re.findall(r"\w+", exported[1]):
            assert f"::: lango_store.integrations.{adapter.name}.{name}\n" in reference


def is_error(name: str) -> bool:
    return isinstance(found := getattr(lango_store, name), type) and issubclass(found, BaseException)


@pytest.mark.parametrize("kind", [Store, Conversation, AsyncStore, AsyncConversation])
def test_every_verb_is_on_a_page_for_readers(kind: type) -> None:
    pages = [REFERENCE / "verbs.md", *sorted((DOCS / "howto").glob("*.md")), *sorted((DOCS / "start").glob("*.md"))]
    said = set().union(*map(words, pages))
    public = {name for name in vars(kind) if not name.startswith("_")}
    assert public - said - {"key"} == set()


def test_every_function_of_windows_and_migrations_is_on_a_page() -> None:
    said = set().union(*map(words, PAGES))
    for module in (window, schema):
        public = {name for name in getattr(module, "__all__", vars(module)) if callable(getattr(module, name))}
        ours = {name for name in public if getattr(module, name).__module__.startswith(module.__name__)}
        assert {name for name in ours if not name.startswith("_")} - said == set()


def test_every_error_is_in_the_reference() -> None:
    named = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert named - words(REFERENCE / "errors.md") == set()


def test_every_column_is_in_the_reference() -> None:
    text = (REFERENCE / "tables.md").read_text()
    sections = dict(zip(*[iter(re.split(r"^## (\w+)$", text, flags=re.MULTILINE)[1:])] * 2, strict=True))
    for table in tables.Base.metadata.sorted_tables:
        said = set(re.findall(r"`(\w+)`", sections[table.name]))
        assert {column.name for column in table.columns} - said == set(), table.name


def test_the_page_of_commands_is_up_to_date() -> None:
    assert command_pages.PAGE.read_text() == command_pages.page(), "run `python tests/support/command_pages.py`"


def test_every_command_is_shown_in_use() -> None:
    guides = "\n".join(path.read_text() for path in PAGES if path != command_pages.PAGE)
    assert [name for name, _ in command_pages.commands() if name not in guides] == []


def test_every_environment_variable_is_on_a_page() -> None:
    said = "\n".join(path.read_text() for path in PAGES)
    read = set(URL_VARIABLES)
    for path in [*(ROOT / "lango_store").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), ROOT / "Makefile"]:
        read |= set(re.findall(r"\bLANGO_STORE_[A-Z_]+\b", path.read_text()))
    assert {name for name in read if name not in said} == set()


def test_every_page_is_in_the_sites_navigation() -> None:
    configured = (ROOT / "mkdocs.yml").read_text()
    there = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert {page for page in there if page not in configured} == set()
    assert set(re.findall(r"[\w/-]+\.md", configured)) <= there


def test_every_link_leads_somewhere() -> None:
    broken = []
    for path in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", path.read_text()):
            name, _, anchor = target.partition("#")
            found = path.parent / name if name else path
            if not found.exists() or (anchor and anchor not in anchors(found)):
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert broken == []


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_every_promise_has_its_test() -> None:
    promised = re.findall(r"`([a-z_/]+\.py)::(test_\w+)`", (DOCS / "why" / "promises.md").read_text())
    assert len(promised) > 20
    for file, name in promised:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), (file, name)
    rows = [line for line in (DOCS / "why" / "promises.md").read_text().splitlines() if line.startswith("| ")]
    assert all("::test_" in row for row in rows[1:] if not row.startswith("|---"))


def test_the_navigation_is_yaml() -> None:
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text())["strict"] is True


@pytest.mark.parametrize("page", PAGES_WITH_FIGURES, ids=lambda page: page.name)
def test_the_figures_are_those_that_a_benchmark_wrote(page: Path) -> None:
    figures, text = noted(), page.read_text()
    assert all(set(each) == set(DATABASES) for each in figures.values())
    assert with_figures(text, figures) == text
    shown = [what for what in figures if f"| {what} | " in text]
    assert len(shown) >= 4
    other = {what: dict.fromkeys(DATABASES, 99.0) for what in figures}
    assert with_figures(text, other).count("| 99.00 | 99.00 |") == len(shown)
