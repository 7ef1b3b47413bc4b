"""The script that builds a release."""

import importlib.util
import subprocess
import sys
from types import ModuleType

import pytest
from support.paths import ROOT

FILES = "https://example.org/lango-store/blob/v0.1.0"


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_of_the_readme_work_where_an_index_shows_it(release: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    changelog = "## [0.1.0] - 2026-12-01\n"
    assert any("relative link docs/" in fault for fault in release.faults(readme, changelog, "0.1.0"))
    assert list(release.faults(release.with_links(readme, FILES), changelog, "0.1.0")) == []
    assert release.with_links("[a](docs/a.md#b) [c](#c) [d](https://d)", FILES) == (
        f"[a]({FILES}/docs/a.md#b) [c](#c) [d](https://d)"
    )


def test_release_without_a_date_in_the_changelog_is_refused(release: ModuleType) -> None:
    faults = list(release.faults("text", "## [Unreleased]\n", "0.1.0"))
    assert faults == ["CHANGELOG.md has no heading `## [0.1.0] - ` with the date of the release"]


def test_address_is_required() -> None:
    done = subprocess.run([sys.executable, ROOT / ".ci" / "release.py", "docs"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "begins with https://" in done.stderr
