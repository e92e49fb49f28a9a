"""Templates are data: whatever one does, it costs bounded time and memory, and ends in a refusal."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aerix.actors import Refused, os_linux
from aerix.pool.builtin import CHATML
from aerix.pool.rendering import Apart, Jinja, Render, renderer
from tests.pool.daemons import Daemons, Wire

HI = Render([{"role": "user", "content": "Hi"}], turn=True, thinking=False)
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def apart() -> Iterator[Callable[[str], Apart]]:
    made: list[Apart] = []

    def make(source: str) -> Apart:
        made.append(Apart(source, "<s>", "</s>"))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.rule("template.bounded")
def test_a_models_template_is_rendered_in_a_process_of_its_own(apart: Callable[[str], Apart]) -> None:
    assert (
        apart("{{ bos_token }}" + CHATML)(HI) == "<s><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert isinstance(renderer(CHATML, "", ""), Jinja)
    assert isinstance(renderer(CHATML + " ", "", ""), Apart)


@pytest.mark.rule("template.bounded")
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for a in range(10**9) %}{% endfor %}", "Range too big"),
        ("{{ 'a' * 10**10 }}", "too much memory"),
        (
            "{% set n = namespace(x='aa') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "too much memory",
        ),
        (
            "{% for a in range(99999) %}{{ 'all work and no play' }}{% endfor %}",
            "more than 1,048,576 characters",
        ),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{% if %}", "Expected an expression"),
        ("{{ raise_exception('only on Sundays') }}", "only on Sundays"),
    ],
)
def test_what_a_template_may_not_take_is_a_refusal_that_names_the_setting(
    apart: Callable[[str], Apart], source: str, why: str
) -> None:
    with pytest.raises(Refused, match=why) as refusal:
        apart(source)(HI)
    assert refusal.value.code == "bad_template"
    assert 'Set `template` under [models."REF"]' in refusal.value.message


@pytest.mark.bound("worker.template-time")
@pytest.mark.rule("template.bounded")
def test_a_template_that_does_not_end_is_ended_and_the_next_rendering_starts_anew(
    apart: Callable[[str], Apart], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_WORKER_TEMPLATE_TIME", "0.5")
    hangs = apart("{% if messages | length > 1 %}" + ENDLESS + "{% endif %}" + CHATML)
    assert "Hi" in hangs(HI)
    with pytest.raises(Refused, match=r"takes longer than 0\.5 s"):
        hangs(Render(HI.messages * 2, turn=True, thinking=False))
    assert "Hi" in hangs(HI)


@pytest.mark.rule("template.bounded")
def test_a_rendering_process_that_dies_is_a_refusal_and_the_next_one_renders(
    apart: Callable[[str], Apart],
) -> None:
    render = apart(CHATML)
    render(HI)
    child = render._child
    assert child is not None
    for pid in os_linux.children(os.getpid()):
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    child.join(10)
    assert "Hi" in render(HI)


@pytest.mark.rule("template.bounded")
def test_a_template_that_does_not_end_stops_no_pool(
    pool: Daemons, wire: Callable[..., Wire], script: Callable[..., str]
) -> None:
    link = wire(pool(WORKER_TEMPLATE_TIME=0.5).socket)
    link.hello()
    refused = link.ask("MemberLoad", ref=script(), flags={"template": ENDLESS + CHATML})
    assert (refused["type"], refused["code"]) == ("Error", "load_failed")
    assert "takes longer than 0.5 s" in refused["message"]
    loaded = link.ask("MemberLoad", ref=script(), flags={"template": CHATML})
    assert loaded["type"] == "MemberLoaded"
