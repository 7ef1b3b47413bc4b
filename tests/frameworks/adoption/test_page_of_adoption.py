"""The programs and commands on the page about other systems adopt the sessions of frameworks."""

from pathlib import Path

import pytest
from support.commands import run
from support.framework_pages import started
from support.pages import blocks

PAGE = "docs/howto/coming-from.md"
PROGRAMS = [program for program in blocks(PAGE, "python") if "interchange.adopt(" in program]
PRINTED = [
    "user-123 imported 1\n",
    "weather:ann:trip imported 1\n",
    "trip imported 3\n",
    "user-123 imported 1\n",
]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", range(len(PRINTED)))
def test_program_on_the_page_adopts_a_session(number: int, tmp_path: Path) -> None:
    if "langchain" in PROGRAMS[number]:
        pytest.importorskip("langchain_community")
    if "SqliteSaver" in PROGRAMS[number]:
        pytest.importorskip("langgraph.checkpoint.sqlite")
    assert started("-c", PROGRAMS[number], folder=tmp_path, timeout=200).startswith(PRINTED[number])


def test_commands_on_the_page_adopt_a_file(tmp_path: Path) -> None:
    (tmp_path / "conversations.db").touch()
    write = PROGRAMS[0].partition("    with Store")[0] + "\n\nasyncio.run(main())"
    started("-c", write, folder=tmp_path)
    script = next(block for block in blocks(PAGE, "sh") if "adopt" in block)
    commands = [line.split()[1:] for line in script.splitlines() if "sqlite" in line]
    shown = [run(*words, folder=tmp_path) for words in commands]
    assert [each.returncode for each in shown] == [0, 0, 0]
    assert [each.stdout.split(";")[0] for each in shown[1:]] == [
        "would adopt 1 session, continued 0, 1 message",
        "adopted 1 session, continued 0, 1 message",
    ]
