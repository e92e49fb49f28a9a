"""A pool seen from outside: its figures for Prometheus, and its status for people and programs."""

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace

import pytest

from aerix.pool import protocol as p
from aerix.pool.cli_status import member_lines
from aerix.pool.metrics import metrics, resident_bytes
from aerix.pool.tally import Tally
from tests.pool.daemons import AERIX, Daemons, Scripts, Wire
from tests.pool.test_cli import aerix

Open = Callable[..., Wire]
SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (-?[0-9.e+-]+)')
INFO = p.MemberInfo("m", "ready", totals=p.Totals(4, 1, 2, 100, 40, 50, 20, 500.0, 1000.0))
STATUS = p.PoolStatus(0, "0.1.0", 1, 12.5, "/s", 3, [INFO, p.MemberInfo('odd "na\\me"\n', "failed")])


def done(prompt: int, resumed: int, generated: int, stop: p.Stop = "stop") -> p.Done:
    return p.Done(1, stop, "", [], p.Usage(prompt, generated, resumed, "none", 0, 10.0, 20.0), "v")


@pytest.mark.rule("pool.metrics")
def test_every_metric_has_its_help_and_type_and_a_name_as_prometheus_wants_it() -> None:
    kinds: dict[str, str] = {}
    helped, seen = set(), set()
    for line in metrics(STATUS).splitlines():
        if line.startswith("# HELP "):
            helped.add(line.split()[2])
        elif line.startswith("# TYPE "):
            kinds[line.split()[2]] = line.split()[3]
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            name = match[1]
            assert name in helped
            assert (kinds[name] == "counter") == name.endswith("_total")
            assert (name, match[2]) not in seen
            seen.add((name, match[2]))
    assert {name for name, _ in seen} == helped == set(kinds)
    assert not any(re.search("milli|_ms|_kb|_mb", name) for name in kinds)


@pytest.mark.rule("pool.metrics")
def test_figures_are_those_of_the_status() -> None:
    text = metrics(STATUS)
    for line in (
        'aerix_pool_info{release="0.1.0"} 1',
        "aerix_pool_uptime_seconds 12.5",
        "aerix_pool_connections 3",
        'aerix_member_state{member="m",state="ready"} 1',
        'aerix_member_state{member="m",state="failed"} 0',
        'aerix_member_generations_total{member="m"} 4',
        'aerix_member_generations_cancelled_total{member="m"} 1',
        'aerix_member_generations_refused_total{member="m"} 2',
        'aerix_member_prompt_tokens_total{member="m"} 100',
        'aerix_member_prompt_tokens_resumed_total{member="m"} 40',
        'aerix_member_generated_tokens_total{member="m"} 50',
        'aerix_member_generated_tokens_drafted_total{member="m"} 20',
        'aerix_member_prompt_seconds_total{member="m"} 0.5',
        'aerix_member_decode_seconds_total{member="m"} 1',
        'aerix_member_contexts{member="odd \\"na\\\\me\\"\\n"} 0',
    ):
        assert f"{line}\n" in text
    assert resident_bytes(0) == 0


def test_a_pool_without_members_has_metrics_of_its_own_only() -> None:
    text = metrics(replace(STATUS, members=[]))
    assert "aerix_pool_connections" in text
    assert "aerix_member" not in text


def test_a_tally_adds_up_what_generations_cost_and_not_what_never_began() -> None:
    tally = Tally()
    tally.done(replace(one := done(10, 4, 5), usage=replace(one.usage, drafted_tokens=5)))
    tally.done(done(20, 0, 3, "cancelled"))
    tally.done(done(1000, 0, 0, "cancelled"))
    tally.refused()
    assert tally.totals == p.Totals(3, 2, 1, 30, 4, 8, 5, 20.0, 40.0)


@pytest.mark.rule("pool.status")
def test_a_member_shows_its_rates_and_why_it_was_restarted() -> None:
    lines = "\n".join(member_lines(replace(INFO, restarts=1, restarted="its worker ended: signal SIGSEGV")))
    for part in (
        "generations 4 (1 cancelled), refused 2",
        "prompts 100 tokens, 40 of them resumed, the others 120.0 a second",
        "generated 50 tokens, 20 of them drafted, 50.0 a second",
        "restarts 1",
        "last restart: its worker ended: signal SIGSEGV",
    ):
        assert part in lines
    assert "generations" not in "\n".join(member_lines(p.MemberInfo("m", "ready")))


@pytest.mark.rule("pool.metrics")
@pytest.mark.rule("pool.status-watch")
def test_the_command_line_shows_what_was_done_and_watches(pool: Daemons, script: Scripts, wire: Open) -> None:
    ref = script({"text": "fine"})
    one = wire(pool(ref).socket)
    one.hello()
    one.ask("Generate", context=one.create(ref), max_tokens=9)
    one.ask("Generate", context=one.create(ref), max_tokens=9000)
    shown = aerix("pool", "metrics")
    assert shown.returncode == 0
    assert f'aerix_member_generations_total{{member="{ref}"}} 1\n' in shown.stdout
    assert f'aerix_member_generations_refused_total{{member="{ref}"}} 1\n' in shown.stdout
    found = re.search(r"^aerix_pool_resident_memory_bytes (\S+)$", shown.stdout, re.MULTILINE)
    assert found
    assert float(found[1]) > 1e6
    assert "generations 1 (0 cancelled), refused 1" in aerix("pool", "status").stdout
    watch = subprocess.Popen(
        [*AERIX, "pool", "status", "--watch", "0.1", "--json"], stdout=subprocess.PIPE, text=True
    )
    assert watch.stdout is not None
    uptimes = [json.loads(watch.stdout.readline())["uptime_secs"] for _ in range(3)]
    assert uptimes == sorted(set(uptimes))
    assert aerix("pool", "stop").returncode == 0
    watch.stdout.read()
    assert watch.wait() == 4
    watch.stdout.close()


@pytest.mark.rule("cli.one-sentence")
def test_without_a_pool_there_are_no_metrics(pool: Daemons) -> None:
    told = aerix("pool", "metrics")
    assert (told.returncode, told.stdout) == (4, "")
    assert told.stderr == f"aerix: no pool answers on {pool.socket}: run `aerix pool start`\n"


def test_an_interval_of_nothing_is_a_usage_error() -> None:
    assert aerix("pool", "status", "--watch", "0").returncode == 3


@pytest.mark.rule("prefix.shelves")
def test_what_is_kept_where_is_shown_and_counted() -> None:
    shelves = [
        p.ShelfInfo("resident", 61_000_000, 402_000_000, 2, 5, 1),
        p.ShelfInfo("memory", 0, 4 << 30, 0, 0, 1),
    ]
    member = replace(INFO, shelves=shelves)
    lines = [line.strip() for line in member_lines(member)]
    assert "kept in the cache: 61 MB of 402 MB, entries 2, hits 5, misses 1" in lines
    assert "kept in memory: 0 MB of 4.3 GB, entries 0, hits 0, misses 1" in lines
    text = metrics(replace(STATUS, members=[member]))
    assert 'aerix_member_shelf_bytes{member="m",shelf="resident"} 61000000\n' in text
    assert 'aerix_member_shelf_hits_total{member="m",shelf="resident"} 5\n' in text
    assert 'aerix_member_shelf_misses_total{member="m",shelf="memory"} 1\n' in text


def test_a_member_that_has_kept_nothing_yet_shows_no_shelves() -> None:
    shelves = [p.ShelfInfo("resident", 0, 402_000_000, 0, 0, 0)]
    assert not [line for line in member_lines(replace(INFO, shelves=shelves)) if "kept" in line]
