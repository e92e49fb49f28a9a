"""What is piped in joins the prompt; what is no pipe is not read."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ASK = """
import json, sys
from aerix.output import fill_standard_descriptors
from aerix.stdin import BadPrompt, prompt_of
fill_standard_descriptors()
try:
    print(json.dumps(["prompt", prompt_of(*json.loads(sys.argv[1]))]))
except BadPrompt as bad:
    print(json.dumps(["bad", str(bad)]))
"""


def ask(argument: str | None, stdin: int | bytes, **env: str) -> tuple[str, str, str]:
    """What the prompt is, or why there is none; and what was said on standard error."""
    given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    command = [sys.executable, "-c", ASK, json.dumps([argument])]
    done = subprocess.run(command, capture_output=True, check=True, env=os.environ | env, timeout=30, **given)
    kind, text = json.loads(done.stdout)
    return kind, text, bytes(done.stderr).decode()


@pytest.mark.rule("headless.piped-prompt")
@pytest.mark.parametrize(
    ("argument", "piped", "prompt"),
    [
        ("explain", b"def f(): ...\n", "explain\n\ndef f(): ..."),
        ("-", b"  all of it\n\n", "all of it"),
        (None, b"all of it", "all of it"),
        ("explain", b"", "explain"),
        ("-", "grüße".encode(), "grüße"),
    ],
)
def test_piped_text_joins_the_argument(argument: str | None, piped: bytes, prompt: str) -> None:
    assert ask(argument, piped) == ("prompt", prompt, "")


@pytest.mark.rule("headless.piped-prompt")
def test_a_file_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("from a file")
    with (tmp_path / "file").open() as file:
        assert ask("x", file.fileno())[:2] == ("prompt", "x\n\nfrom a file")


@pytest.mark.rule("headless.silent-pipe")
def test_a_terminal_and_dev_null_are_not_read() -> None:
    master, terminal = pty.openpty()
    try:
        assert ask("x", terminal) == ("prompt", "x", "")
        assert ask("x", subprocess.DEVNULL) == ("prompt", "x", "")
    finally:
        os.close(master)
        os.close(terminal)


@pytest.mark.rule("headless.silent-pipe")
@pytest.mark.parametrize("argument", ["x", "-"])
def test_a_closed_input_is_not_read(argument: str) -> None:
    line = f"{sys.executable} -c '{ASK}' '{json.dumps([argument])}' <&-"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True, timeout=30)
    kind, text = json.loads(done.stdout)
    assert (kind, text) == ("prompt", "x") if argument == "x" else kind == "bad"


@pytest.mark.bound("headless.stdin-note")
@pytest.mark.rule("headless.silent-pipe")
def test_a_silent_pipe_is_one_note_and_is_waited_for() -> None:
    command = [sys.executable, "-c", ASK, json.dumps(["x"])]
    env = os.environ | {"AERIX_BOUND_HEADLESS_STDIN_NOTE": "0.05"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    ) as process:
        assert process.stderr is not None
        note = process.stderr.readline().decode()
        out, rest = process.communicate(b"late", timeout=30)
    assert note.startswith("aerix: waiting for the end of standard input")
    assert (json.loads(out), rest) == (["prompt", "x\n\nlate"], b"")


@pytest.mark.rule("headless.piped-prompt")
@pytest.mark.rule("cli.one-sentence")
@pytest.mark.parametrize(
    ("argument", "piped", "why"),
    [
        ("-", b"x" * 101, "longer than 100 bytes"),
        ("x", b"\xff\xfe", "not UTF-8"),
        ("-", b" \n", "no prompt"),
        (" ", b"", "no prompt"),
    ],
)
def test_what_is_no_prompt_is_refused_with_what_to_do(argument: str, piped: bytes, why: str) -> None:
    kind, text, _ = ask(argument, piped, AERIX_BOUND_HEADLESS_STDIN="100")
    assert kind == "bad"
    assert why in text


def test_a_prompt_that_is_not_text_is_refused() -> None:
    from aerix.stdin import BadPrompt, prompt_of

    with pytest.raises(BadPrompt, match="not UTF-8"):
        prompt_of("bad \udcff prompt")
