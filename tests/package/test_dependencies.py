"""The versions that the package says it works with are those that are tested."""

from __future__ import annotations

import re
import tomllib

from support.paths import ROOT


def test_the_lowest_versions_that_are_tested_are_those_that_are_admitted() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    admitted = dict(re.findall(r"^([\w-]+)(?:\[\w+\])?>=([\d.]+)", "\n".join(project["dependencies"]), re.MULTILINE))
    lines = (ROOT / ".ci" / "lowest.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    beside = {"psycopg-binary": admitted["psycopg"], "click": tested["click"]}
    assert tested == admitted | beside
