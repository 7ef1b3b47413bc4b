"""Pages of what each form wrote, as the AI SDK and AG-UI validate them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from support.content_blocks import mixed_logs
from support.content_cases import CASES, case_log, page_of, stored

from lango_store import Message
from lango_store.content import FORMS, ignore


def refused(front_end: Path, pages: dict[str, list[Any]]) -> list[str]:
    """Return the reasons for which pages are refused."""
    done = subprocess.run(
        ["node", "check-pages.mjs"],
        cwd=front_end,
        input=json.dumps(pages),
        capture_output=True,
        text=True,
        check=True,
    )
    reasons: list[str] = json.loads(done.stdout)
    return reasons


def pages_of(logs: list[list[Message]]) -> dict[str, list[Any]]:
    return {protocol: [page_of(protocol, log) for log in logs] for protocol in ("aisdk", "agui")}


def test_page_of_each_case_is_valid(front_end: Path) -> None:
    found = [case_log(case, form.name) for form in FORMS.values() for case in CASES]
    forms = [form for form in FORMS.values() for _ in CASES]
    logs = [stored(form, log, ignore) for form, log in zip(forms, found, strict=True) if log is not None]
    assert refused(front_end, pages_of(logs)) == []


@pytest.mark.timeout(300)
def test_pages_of_mixed_blocks_are_valid(front_end: Path) -> None:
    logs: list[list[Message]] = []

    @settings(max_examples=300, database=None, deadline=None)
    @given(log=mixed_logs())
    def collect(log: list[Message]) -> None:
        logs.append(log)

    collect()
    pages = pages_of(logs)
    pages["aisdk"] = [page for page in pages["aisdk"] if page]  # the AI SDK refuses a list without messages
    assert refused(front_end, pages) == []


def test_page_with_an_unknown_role_is_refused(front_end: Path) -> None:
    message = {"id": "m1", "role": "unknown", "parts": [], "content": ""}
    assert len(refused(front_end, {"aisdk": [[message]], "agui": [[message]]})) == 2
