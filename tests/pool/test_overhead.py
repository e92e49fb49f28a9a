"""What a turn costs a worker beside the model does not grow with the turns before it. Counted, not timed."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import aerix
from aerix.pool import protocol as p
from tests.pool.desk import Scripts

TURNS = 120
POOL = str(Path(aerix.__file__).parent / "pool")
MODEL = ("scripted.py", "script.py")


@pytest.mark.rule("agent.turn-overhead-flat")
def test_a_generation_and_an_append_run_as_many_lines_behind_many_others(tmp_path: Path) -> None:
    desk = Scripts(tmp_path).desk({"window": 100_000}, *[{"text": "said"}] * TURNS)
    desk.create(p.Segment("s", "system", "You help."), p.Segment("u", "user", "hi"))
    lines: Counter[int] = Counter()
    turn = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        if not name.startswith(POOL) or name.endswith(MODEL):
            return None
        lines[turn] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for turn in range(TURNS):
            done = desk.generate(20)
            said = p.Segment(f"t{turn}", "assistant", done.text, tokens=done.tokens, vocab=done.vocab)
            desk.append(said, p.Segment(f"c{turn}", "user", "result"))
    finally:
        sys.settrace(before)
    assert lines[TURNS - 1] < 1.3 * lines[10]
