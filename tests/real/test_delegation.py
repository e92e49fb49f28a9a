"""A scripted planner whose pieces are done by the real model: four implementers at once, and their verifiers."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest

from aerix.agent.delegation import Rules
from aerix.pool.client import PoolSettings
from aerix.session.replay import replay
from aerix.tools import TOOLS
from aerix.turn.pieces import VERDICT
from aerix.turn.schema import JsonSchema, ToolSpec, turn_schema
from tests.agent.test_delegation import load, resumed, shared, spawned, told
from tests.runs import Desk, call, calls, daemon, final, of, play, turns  # noqa: F401 - a fixture

BRIEFS = ("Say hello.", "Name a colour.", "Say what README.md is for.", "Count to three.")
SHORT: JsonSchema = {"type": "string", "minLength": 1, "maxLength": 40}
PIECES = [f"a1.c{n}" for n in range(1, len(BRIEFS) + 1)]


@pytest.mark.rule("delegation.resumes-shared")
@pytest.mark.rule("delegation.other-member")
@pytest.mark.rule("turn.verdict")
def test_four_implementers_at_once_resume_where_the_first_of_them_built_the_shared_segments(
    daemon: PoolSettings,  # noqa: F811
    own_home: Path,
    model_file: Path,
    git_repo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So small a model is held to a short final, whatever it says, so that there is something to verify."""

    def short(tools: Sequence[ToolSpec], final: JsonSchema | None = None, **more: int) -> JsonSchema:
        return turn_schema(tools, final or SHORT, **more)

    monkeypatch.setattr("aerix.agent.agent.turn_schema", short)
    monkeypatch.setattr("aerix.turn.schema.THOUGHT_CHARS", 40)
    monkeypatch.setattr("aerix.agent.piece.allowed_tools", lambda _: ())
    monkeypatch.setattr(sys.modules["aerix.turn.parse"], "EXAMPLE_ANSWER", None)
    monkeypatch.setenv("AERIX_BOUND_AGENT_TURN_RETRIES", "0")
    (git_repo / "AGENTS.md").write_text("Answer in one short sentence. " * 8)
    link = own_home / "m.gguf"  # its name stands four times in the planner's turn
    link.symlink_to(model_file)
    real = str(link)
    load(daemon, real)
    made = [call("agent", brief=brief, member=real) for brief in BRIEFS]
    planner = play(tmp_path, {"pieces": [calls(*made), final("all")]}, window=16384, tokenizer=real)
    rules = Rules(turns=1, retries=0)
    ran = Desk(daemon, git_repo, tmp_path, planner)(
        "play pieces", route="plan", delegation=rules, max_new_tokens=256, diff=False
    )
    assert (ran.end.outcome, ran.end.text) == ("done", "all"), ran.end.reason
    verifiers = [f"{piece}.v1" for piece in PIECES]
    assert sorted(spawned(ran)) == sorted(["a1", *PIECES, *verifiers])
    assert {line["member"] for line in of(ran.log, "agent.spawn") if line["agent"] != "a1"} == {real}
    starts = sorted(resumed(ran, piece) for piece in PIECES)
    assert starts[0] == 0  # it built them
    assert starts[1] >= shared(ran, PIECES[0], "instructions") > 400
    for verifier in verifiers:
        assert resumed(ran, verifier) >= shared(ran, verifier, "system") > 300
    verifying = turn_schema([TOOLS[name] for name in of(ran.log, "agent.spawn")[-1]["tools"]], VERDICT)
    for line in turns(ran.log):
        if line["agent"] in verifiers and line["kept"]:
            jsonschema.validate(json.loads(line["text"]), verifying)
    assert all(told(ran, f"c{n}")["outcome"] for n in range(1, 5))
    assert list(replay(ran.log)) == [line["agent"] for line in of(ran.log, "agent.spawn")]
