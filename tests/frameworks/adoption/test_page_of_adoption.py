"""The programs and commands on the page about other systems adopt the sessions of frameworks."""

from pathlib import Path

from support.commands import run
from support.framework_pages import started
from support.pages import blocks

PAGE = "docs/howto/coming-from.md"
(PROGRAM,) = (program for program in blocks(PAGE, "python") if "interchange.adopt(" in program)


def test_program_on_the_page_adopts_a_session(tmp_path: Path) -> None:
    assert started("-c", PROGRAM, folder=tmp_path, timeout=200) == "user-123 imported 1\n"


def test_commands_on_the_page_adopt_a_file(tmp_path: Path) -> None:
    (tmp_path / "conversations.db").touch()
    write = PROGRAM.partition("    with Store")[0] + "\n\nasyncio.run(main())"
    started("-c", write, folder=tmp_path)
    script = next(block for block in blocks(PAGE, "sh") if "adopt" in block)
    commands = [line.split()[1:] for line in script.splitlines() if "sqlite" in line]
    shown = [run(*words, folder=tmp_path) for words in commands]
    assert [each.returncode for each in shown] == [0, 0, 0]
    assert [each.stdout.split(";")[0] for each in shown[1:]] == [
        "would adopt 1 session, continued 0, 1 message",
        "adopted 1 session, continued 0, 1 message",
    ]
