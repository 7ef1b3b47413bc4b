"""The parts that each form wrote, written by each other form: equal, or named by a repair."""

from typing import Any, Final

import pytest
from support.content_cases import CASES, Log, case_log, family, flat, read_back, stored, written_for

from lango_store import Message
from lango_store.content import FORMS, Form, parts

_AUDIO: Final = {"audio": "audio/wav attachment is named by a text"}
_REFUSAL: Final = {"refusal": "a refusal is sent as text"}
_THINKING: Final = {"unsigned thinking": "thinking that another provider wrote, or that is not signed, is left out"}
_FAILURE: Final = "only the text of the result says that the tool failed"
_FAILURES: Final = {"failed result": _FAILURE, "failed result with picture": _FAILURE}
_PICTURE: Final = "image/png attachment is named by a text"
_RESULTS: Final = {"result with picture": _PICTURE, "failed result with picture": _PICTURE}
_FAILED_PICTURE: Final = {"failed result with picture": _PICTURE}
_OWN: Final = {"signed thinking": "thinking that another provider wrote", "native block": "is left out: only"}

LACKS: Final[dict[str, dict[str, str]]] = {
    "openai": _FAILURES | _RESULTS | _THINKING,
    "openai-responses": _AUDIO | _REFUSAL | _THINKING | _FAILURES,
    "anthropic": _AUDIO | _REFUSAL | _THINKING | _FAILED_PICTURE,
    "claude": _AUDIO | _REFUSAL | _THINKING | _FAILED_PICTURE,
    "gemini": _REFUSAL | _THINKING | _RESULTS,
    "adk": _REFUSAL | _THINKING | _RESULTS,
    "aisdk": _REFUSAL | _FAILED_PICTURE,
    "agui": _REFUSAL | _RESULTS,
    "langchain": _REFUSAL,
    "mcp": _REFUSAL | _THINKING,
    "pydantic-ai": _REFUSAL,
}
"""The cases that a form cannot express, with the words of the note. A case that is not here must be equal."""

READS: Final[dict[str, set[str]]] = {
    "signed thinking": {"pydantic-ai", "aisdk", "agui"},  # pages show its text
    "native block": {"langchain"},
}
"""Forms that can express the signed thinking or the native blocks of all others, apart from their own."""

NOT_STORED: Final = {("agui", "unsigned thinking")}
"""A message of its own in AG-UI, which no content has."""


def lacking(target: Form, source: Form, case: str) -> str | None:
    """Return what a form notes about a case that it cannot express; None if it can."""
    if case not in _OWN:
        return LACKS[target.name].get(case)
    if family(target.name) == family(source.name) or target.name in READS[case]:
        return None
    if case == "signed thinking" and target.name == "langchain":
        return None if family(source.name) == "anthropic" else "the signature of thinking is left out"
    return _OWN[case]


def expected(log: Log) -> list[Any]:
    return flat(part for _, found in log for part in found)


def source_log(source: Form, case: str) -> list[Message] | None:
    """Return what a form has stored for a case; None if it cannot express the case, which its table has to say."""
    log = case_log(case, source.name)
    if log is None or (source.name, case) in NOT_STORED:
        return None
    notes: list[str] = []
    messages = stored(source, log, notes.append)
    is_equal = flat(part for message in messages for part in parts(message)) == expected(log)
    if not is_equal:
        assert any(LACKS[source.name][case] in note for note in notes), notes
    assert not (is_equal and notes), notes
    return messages if is_equal else None


def test_table_names_each_form() -> None:
    assert LACKS.keys() == FORMS.keys()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("source", FORMS.values(), ids=FORMS)
def test_each_form_expresses_what_another_wrote_or_names_it(source: Form, case: str) -> None:
    messages = source_log(source, case)
    if messages is None:
        return
    for target in FORMS.values():
        written, notes = written_for(target, messages)
        has_signatures = target.name not in ("aisdk", "agui")
        wanted = flat((part for message in messages for part in parts(message)), with_signatures=has_signatures)
        found = flat(read_back(target, written), with_signatures=has_signatures)
        lack = lacking(target, source, case)
        if lack is None:
            assert (found, notes) == (wanted, []), target.name
        else:
            assert found != wanted, f"{target.name} can express {case}: remove it from the table"
            assert any(lack in note for note in notes), (target.name, notes)


@pytest.mark.parametrize("case", CASES)
def test_each_case_is_stored_by_some_forms(case: str) -> None:
    sources = [name for name, form in FORMS.items() if source_log(form, case) is not None]
    assert sources if case == "refusal" else len(sources) > 1
