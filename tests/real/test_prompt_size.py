"""How many tokens of the default model the fixed texts take."""

import subprocess
import sys
from pathlib import Path

import pytest

from aerix.prompts import load
from aerix.tools import TOOLS
from aerix.turn import pieces, prompt

COUNT = """
import sys
from llama_cpp import Llama
llama = Llama(sys.argv[1], vocab_only=True, verbose=False)
print(len(llama.tokenize(sys.stdin.buffer.read(), add_bos=False, special=False)))
"""


def tokens(model_file: Path, text: str) -> int:
    """Counted in a process of its own: only a worker imports the engine."""
    command = [sys.executable, "-c", COUNT, str(model_file)]
    return int(subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout)


@pytest.mark.rule("request.prompt-size")
def test_system_prompt_tools_and_turns_stay_under_700_tokens(model_file):
    text = prompt.system_text(load("system"), list(TOOLS.values()))
    assert 300 < tokens(model_file, text) < 700


@pytest.mark.rule("request.prompt-size")
def test_what_delegation_adds_is_short(model_file):
    tools = [TOOLS[name] for name in ("read", "bash", "grep", "glob")]
    brief = pieces.brief_text(load("brief"), "", "", may_delegate=False)
    assert 50 < tokens(model_file, brief) < 150
    assert 100 < tokens(model_file, pieces.verifier_text(load("verifier"), "", "", "", (), tools)) < 280
    assert 50 < tokens(model_file, pieces.planner_note(tools)) < 120


@pytest.mark.rule("request.prompt-size")
def test_the_routing_prompt_is_short(model_file):
    assert 20 < tokens(model_file, load("routing")) < 160
