"""Routing: one of four words, on a context that is thrown away."""

from typing import Any

import pytest

from aerix.agent.route import ROUTES
from aerix.pool.client import PoolSettings
from tests.runs import Desk, contexts_left, final, of, play, pool_status

PLAYS: dict[str, list[dict[str, Any]]] = {
    "plain": [final()],
    "chosen": [
        {"text": "investigate", "match": r"play chosen\b"},
        {**final(), "match": "# Turns[^§]*play chosen"},
    ],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return play(tmp_path_factory.mktemp("model"), PLAYS)


@pytest.mark.rule("route.one-of-four")
@pytest.mark.rule("route.logged")
@pytest.mark.rule("bounds.routing-tokens")
def test_the_route_is_one_of_four_and_an_event_with_all_scores(desk: Desk) -> None:
    (route,) = of(desk("play chosen").log, "route")
    assert route["route"] == "investigate"
    assert not route["default"]
    assert set(route["scores"]) == set(ROUTES)
    assert max(route["scores"], key=route["scores"].get) == "investigate"


@pytest.mark.rule("route.throwaway")
@pytest.mark.rule("request.order")
def test_the_routing_context_holds_little_and_is_gone_afterwards(desk: Desk, daemon: PoolSettings) -> None:
    ran = desk("play plain")
    kinds = [line["type"] for line in ran.log]
    assert kinds[:4] == ["session.start", "route", "agent.spawn", "segment"]
    assert kinds[-2:] == ["agent.end", "session.end"]
    assert of(ran.log, "route")[0]["usage"]["prompt_tokens"] < 700  # no tools, no turns
    assert contexts_left(daemon) == 0


@pytest.mark.rule("route.throwaway")
def test_only_the_start_of_a_long_request_is_classified(desk: Desk) -> None:
    ran = desk("play plain " + "x" * 5000, diff=False)
    assert 4000 < of(ran.log, "route")[0]["usage"]["prompt_tokens"] < 4700
    assert ran.end.outcome == "done"


@pytest.mark.rule("route.no-match-is-edit")
def test_a_request_that_cannot_be_classified_takes_the_default(desk: Desk, tmp_path_factory: Any) -> None:
    small = play(tmp_path_factory.mktemp("small"), {"plain": [final()]}, window=4096)
    (route,) = of(desk("play plain " + "x" * 4000, model=small, diff=False).log, "route")
    assert (route["route"], route["default"]) == ("edit", True)


@pytest.mark.rule("route.decision-member")
def test_a_decision_member_routes_and_the_root_runs_on_main(
    desk: Desk, daemon: PoolSettings, tmp_path_factory: pytest.TempPathFactory
) -> None:
    decision = play(tmp_path_factory.mktemp("decision"), {"plain": [{"text": "answer"}]})
    ran = desk("play plain", decision=decision, decision_flags={"window": 2048}, diff=False)
    (route,) = of(ran.log, "route")
    assert (route["route"], route["default"]) == ("answer", False)
    assert ran.end.outcome == "done"
    members = {member.name: member for member in pool_status(daemon).members}
    used = members[f"{decision} window=2048"]
    assert (used.window, used.totals.generations, used.contexts) == (2048, 1, 0)
