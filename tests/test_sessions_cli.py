"""``aerix sessions``: what there is, what is in it, and how to be rid of it."""

import fcntl
import json
import os
import stat
from pathlib import Path

import pytest

from aerix.cli import run
from aerix.session import events, index
from aerix.session.events import Compaction, Event, Job, Message, Plan, Segment, SessionEnd, SessionStart
from aerix.session.project import project_key

ID = "aaaa1111-0000-4000-8000-00000000000"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    return tmp_path


def session(
    number: int = 1, *made: Event, title: str = "Mend it", cwd: Path | None = None, ended: bool = True
) -> Path:
    """A log of this project, or of that of ``cwd``."""
    folder = Path.cwd() if cwd is None else cwd
    home = index.home(project_key(folder))
    home.mkdir(parents=True, exist_ok=True)
    ts = f"2026-01-0{number}T10:00:00.000+00:00"
    name = f"{ID}{number}"
    begun = SessionStart(
        ts=ts, session=name, version="0", cwd=str(folder), project="p", model="m", title=title
    )
    end = SessionEnd(
        ts=ts,
        session=name,
        outcome="done",
        reason="",
        text="",
        diff="+new",
        untracked=[],
        usage={},
        turns=1,
        exit=0,
    )
    log = home / f"{name}.jsonl"
    log.write_bytes(b"".join(map(events.line, [begun, *made, *([end] if ended else [])])))
    return log


WORK: list[Event] = [
    Segment(id="prompt", role="user", label="prompt", tokens=1, text="Mend it\nnow"),
    Message(
        id="t1",
        role="assistant",
        text=json.dumps({"thought": "Look.", "calls": [
            {"tool": "bash", "input": {"command": "make"}}, {"tool": "read", "input": {"path": "a"}},
        ]}),
    ),
    Message(id="c1", role="user", call="c1", tool="bash", text="[bash c1]\n" + "\n".join(map(str, range(40)))),
    Message(id="c2", role="user", call="c2", tool="read", text="[read c2]\n```\n\x1b[31mred\x1b[0m\tx\n```"),
    Plan(text="1. mend"),
    Compaction(before=90, after=10),
    Job(id="j1", state="exited", how="exited 0"),
    Message(id="t2", role="assistant", text="{", kept=False),
    Message(id="t3", role="assistant", text="what?"),
    Message(agent="a1.c3", id="t1", role="assistant", text=json.dumps({"final": "piece"})),
    Message(id="t4", role="assistant", text=json.dumps({"thought": "", "final": "It is *mended*.\x07"})),
]  # fmt: skip


# --- list


@pytest.mark.rule("session.list-show-rm")
def test_list_has_the_sessions_of_the_project_the_latest_first(capfd: Capture, tmp_path: Path) -> None:
    session(1, *WORK)
    session(2, title="And \x1b[2Jtest", ended=False)
    session(3, title="Elsewhere", cwd=tmp_path / "other")
    assert run(["sessions", "list"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "aaaa1111-0000-4000-8000-000000000002  2026-01-02 10:00  interrupted    0 turns  And ␛[2Jtest",
        "aaaa1111-0000-4000-8000-000000000001  2026-01-01 10:00  done           4 turns  Mend it",
    ]
    assert run(["sessions", "list", "--all"]) == 0
    assert [line.split()[-1] for line in capfd.readouterr().out.splitlines()] == [
        "Elsewhere",
        "␛[2Jtest",
        "it",
    ]


@pytest.mark.rule("session.list-show-rm")
def test_list_as_json(capfd: Capture) -> None:
    log = session(1, *WORK)
    assert run(["sessions", "list", "--json"]) == 0
    (found,) = json.loads(capfd.readouterr().out)
    assert found == {
        "id": f"{ID}1", "started": "2026-01-01T10:00:00.000+00:00", "last": found["last"], "title": "Mend it",
        "requests": 1, "turns": 4, "model": "m", "cwd": str(Path.cwd()), "state": "done", "log": str(log),
    }  # fmt: skip


def test_a_list_of_nothing_says_so(capfd: Capture) -> None:
    assert run(["sessions", "list"]) == 0
    assert run(["sessions", "list", "--all"]) == 0
    assert capfd.readouterr() == (
        "",
        "aerix: there is no session of this project; --all lists those of others\naerix: there is no session\n",
    )


@pytest.mark.rule("session.list-show-rm")
def test_a_session_that_is_open_runs(capfd: Capture) -> None:
    log = session(1, ended=False)
    with log.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert run(["sessions", "list"]) == 0
        assert "  running  " in capfd.readouterr().out
        assert run(["sessions", "rm", ID]) == 6
        assert f"the session {ID}1 is open in another aerix; end that one" in capfd.readouterr().err
    assert log.exists()


# --- show and export


@pytest.mark.rule("session.list-show-rm")
def test_show_tells_what_happened_and_what_is_kept(capfd: Capture) -> None:
    log = session(1, *WORK)
    spool = log.with_suffix("") / "spool"
    spool.mkdir(parents=True)
    (spool / "c1.txt").write_text("whole")
    with log.open("ab") as file:
        file.write(b"what?\n")
    assert run(["sessions", "show", "aaaa"]) == 0
    out, err = capfd.readouterr()
    assert err == "aerix: 1 line of its log passed over: 1 not JSON\n"
    head, text = out.split("\n\n", 1)
    assert head.splitlines()[0] == f"session {ID}1: Mend it"
    assert f"  kept {spool / 'c1.txt'} (5 bytes)" in head
    assert text.splitlines() == [
        f"── 2026-01-01 10:00 · m · {Path.cwd()}",
        "> Mend it", "  now", "  (Look.)",
        "  bash c1", "    make", "  read c2", "    {", '     "path": "a"', "    }",
        "  ← bash c1", *(f"    {n}" for n in range(12)), "    … 28 more lines",
        "  ← read c2", "    ```", "    ␛[31mred␛[0m    x", "    ```",
        "  [the plan]", "    1. mend", "  [compacted: 90 → 10 tokens]", "  [job j1 exited 0]",
        "  [a turn was cut, and was asked again]", "  [what is no turn]", "    what?",
        "a1.c3: piece", "It is *mended*.␇",
        "  [done · turns: 1]", "  what it changed", "    +new",
    ]  # fmt: skip


@pytest.mark.rule("session.export")
def test_export_writes_markdown_that_people_read(capfd: Capture) -> None:
    session(1, *WORK, title="Mend <b>it</b>")
    assert run(["sessions", "export", "aaaa"]) == 0
    out = capfd.readouterr().out
    assert out.startswith(f"# Mend \\<b\\>it\\</b\\>\n\nSession `{ID}1`.\n\n## 2026-01-01 10:00 · m · ")
    for part in (
        "\n**User**\n\n> Mend it\n> now\n",
        "\n*Look.*\n",
        "\n`bash c1`\n\n```\nmake\n```\n",
        "\nResult of `bash c1`\n\n```\n0\n1\n",
        "\n38\n39\n```\n",
        "\nResult of `read c2`\n\n````\n```\n␛[31mred␛[0m\tx\n```\n````\n",
        "\n*\\[the plan\\]*\n\n```\n1. mend\n```\n",
        "\n**Answer (a1.c3)**\n\npiece\n",
        "\n**Answer**\n\nIt is *mended*.␇\n",
        "\n`what it changed`\n\n```diff\n+new\n```\n",
    ):
        assert part in out


@pytest.mark.rule("session.export")
def test_export_as_json_has_every_event(capfd: Capture, tmp_path: Path) -> None:
    log = session(1, *WORK)
    assert run(["sessions", "export", "aaaa", "--format", "json", "-o", "out.json"]) == 0
    text = (tmp_path / "out.json").read_text()
    found = json.loads(text)
    assert (found["id"], found["title"], found["outcome"]) == (f"{ID}1", "Mend it", "done")
    assert found["events"] == [json.loads(line) for line in log.read_bytes().splitlines()]
    assert text.isascii()
    assert stat.S_IMODE((tmp_path / "out.json").stat().st_mode) == 0o600
    assert capfd.readouterr() == ("", "")


@pytest.mark.rule("session.export")
def test_export_overwrites_nothing(capfd: Capture, tmp_path: Path) -> None:
    session(1)
    (tmp_path / "notes.md").write_text("mine")
    assert run(["sessions", "export", "aaaa", "-o", "notes.md"]) == 1
    assert (
        "notes.md cannot be written: File exists; name a file that is not there yet" in capfd.readouterr().err
    )
    assert (tmp_path / "notes.md").read_text() == "mine"
    assert run(["sessions", "export", "aaaa", "-o", "/dev/full"]) == 1


# --- rm


@pytest.mark.rule("session.list-show-rm")
def test_rm_removes_all_that_is_kept_of_sessions_and_nothing_else(capfd: Capture, tmp_path: Path) -> None:
    logs = [session(number, *WORK) for number in (1, 2, 3)]
    home = logs[0].parent
    for log in logs:
        (log.with_suffix("") / "spool").mkdir(parents=True)
        (log.with_suffix("") / "spool/c1.txt").write_text("whole")
        log.with_suffix(".claude.jsonl").write_text("{}\n")
    trees = home / f"{ID}1/trees/objects/ab"
    trees.mkdir(parents=True)
    (trees / "cd").write_text("an object")
    (trees / "cd").chmod(0o444)
    run(["sessions", "list"])
    capfd.readouterr()
    assert run(["sessions", "rm", f"{ID}1", f"{ID}3"]) == 0
    assert capfd.readouterr().out == f"removed {ID}1\nremoved {ID}3\n"
    assert sorted(path.name for path in home.iterdir()) == [
        f"{ID}2", f"{ID}2.claude.jsonl", f"{ID}2.jsonl", "index.json",
    ]  # fmt: skip
    assert list(json.loads((home / "index.json").read_bytes())["sessions"]) == [f"{ID}2"]


def test_rm_follows_no_link_out_of_its_folder(tmp_path: Path) -> None:
    log = session(1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("mine")
    log.with_suffix("").symlink_to(tmp_path / "mine")
    assert run(["sessions", "rm", "aaaa"]) == 0
    assert (tmp_path / "mine/file").read_text() == "mine"
    assert not os.path.lexists(log.with_suffix(""))


@pytest.mark.rule("session.list-show-rm")
def test_of_several_the_ones_that_are_there_are_removed(capfd: Capture) -> None:
    log = session(1)
    assert run(["sessions", "rm", "ffff", "aaaa"]) == 3
    assert "no session has an id that begins with 'ffff'" in capfd.readouterr().err
    assert not log.exists()


@pytest.mark.parametrize("command", ["show", "export", "rm"])
def test_a_session_that_is_not_there_is_named(command: str, capfd: Capture) -> None:
    assert run(["sessions", command, "ffff"]) == 3
    assert capfd.readouterr() == (
        "",
        "aerix: no session has an id that begins with 'ffff'; aerix sessions list --all shows them [no_session]\n",
    )
