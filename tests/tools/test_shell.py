"""Commands taken apart for permission rules; the real shells say whether that was right."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerix.permissions import Permissions
from aerix.tools.permissions import Judge
from aerix.tools.shell import split

SHELLS = [shell for shell in ("bash", "dash") if shutil.which(shell)]


@pytest.mark.rule("permissions.commands-apart")
@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("git status", ("git status",)),
        ("  git   status\t-s ", ("git status -s",)),
        ("a; b && c || d | e & f\ng", ("a", "b", "c", "d", "e", "f", "g")),
        ("echo 'a; b' \"c && d\" e\\;f", ("echo 'a; b' \"c && d\" e\\;f",)),
        ("make 2>&1 | tail -3", ("make", "tail -3")),
        ("make >/dev/null 2>/dev/null </dev/null", ("make",)),
        ("make &> /dev/null", ("make",)),
        ("git sta\\\ntus", ("git status",)),
        ("echo $HOME ${#x}"[:10], ("echo $HOME",)),
        ("echo a#b", ("echo a#b",)),
        ("", ()),
        (" ; ; ", ()),
    ],
)
def test_a_command_is_taken_apart_where_the_shell_does_it(command: str, parts: tuple[str, ...]) -> None:
    found = split(command)
    assert (found.parts, found.sure, found.lost) == (parts, True, False)


UNSURE = [
    "echo $(id)", "echo `id`", 'echo "$(id)"', "echo ${x:-$(id)}", "echo $((1+1))", "echo $'a'", "cat <<EOF\nid\nEOF",
    "cat <<<x", "cat <(id)", "echo x > file", "echo x >> file", "cat < file", "(id)", "f() { id; }", "echo a # b",
    "echo 'open", 'echo "open', "echo \\", "echo $(open", "echo `open", "echo \x1b", "echo > /dev/null2", "id >& file",
]  # fmt: skip


@pytest.mark.rule("permissions.commands-apart")
def test_what_may_run_more_than_it_seems_is_not_sure() -> None:
    assert [command for command in UNSURE if split(command).sure] == []


HIDING = [
    "rm x", "a; rm x", "a && rm x", "a | rm x", "a\nrm x", "a & rm x", "rm\tx", "'rm' x", 'r"m" x', "r\\m x", "/bin/rm x",
    "sudo rm x", "sudo -n rm x", "env A=1 rm x", "timeout -k 5 10s rm x", "nohup rm x", "xargs -n1 rm x", "A=1 rm x",
    "sudo -u root rm x", "env -i -u A rm x", "xargs -I {} rm x", "sudo -u root sh -c 'rm x'", "rm -f x", "rm --one . --two x",
    "bash -c 'rm x'", "sh -ec 'a; rm x'", "eval rm x", "eval 'a; rm x'", "(rm x)", "{ rm x; }", "if a; then rm x; fi",
    "while rm x; do a; done", "! rm x", "time rm x", "echo $(rm x)", "echo `rm x`", 'echo "a $(b $(rm x))"', "f() { rm x; }",
    "a >out; rm x", "cat <<E\nE\nrm x", "bash -c \"bash -c 'rm x'\"", "rm x >/dev/null",
]  # fmt: skip


@pytest.mark.rule("permissions.commands-apart")
def test_a_command_is_seen_wherever_it_hides() -> None:
    assert [command for command in HIDING if "rm x" not in split(command).forms] == []


@pytest.mark.parametrize("command", ["git commit -m 'rm x'", "echo rm x", "grep 'a; rm x' f", "rmdir x"])
def test_a_text_about_a_command_is_none(command: str) -> None:
    assert "rm x" not in split(command).forms


@pytest.mark.rule("permissions.commands-apart")
@pytest.mark.parametrize("opening", ["$(", "`", "bash -c '", '"$(', "(", "sudo ", "A=1 ", "eval "])
def test_nested_without_end_it_is_given_up(opening: str) -> None:
    found = split(opening * 2_001)
    assert not found.sure
    assert found.lost or opening == "("


PIECES = st.sampled_from(
    ["echo ", " ", "a", ";", "&&", "|", "&", "'", '"', "\\", "$(", ")", "`", "#", "\n", "touch M", "\ntouch M", "; touch M", "<<E",
     "\nE\n", "{ ", "}", "(", "$x", ">", "<", "$'", "${x:-", "2>", "/dev/null", "&>", "&1", "[[ ", "]]", "\\\n", "\t", "f() "]
)  # fmt: skip


@pytest.mark.rule("permissions.compound")
@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(PIECES, min_size=1, max_size=9))
def test_no_shell_runs_more_than_what_was_allowed(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str]
) -> None:
    folder = _folder(tmp_path_factory)
    command = "echo " + "".join(pieces)
    judge = Judge(Permissions("ask", allow=("bash(echo *)",)), folder)
    if judge.judge("bash", {"command": command}).verdict == "run":
        for shell in SHELLS if "touch" in command or ">" in command else ():
            subprocess.run(
                [shell, "-c", command], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False
            )
        assert not list(folder.iterdir()), command


_FOLDERS: list[Path] = []


def _folder(factory: pytest.TempPathFactory) -> Path:
    """One for all examples."""
    if not _FOLDERS:
        _FOLDERS.append(factory.mktemp("shells"))
    return _FOLDERS[0]
