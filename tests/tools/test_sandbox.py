"""What a sandboxed command can do, tried in a real sandbox; and what is decided where there is none.

The tests that need bubblewrap are left out where the program itself finds that it does not work.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from aerix import folders
from aerix.actors import Ref, Refused, os_linux, start
from aerix.sandboxing import sandbox_in_force, why_not
from aerix.settings import load_settings
from aerix.tools import sandbox as module
from aerix.tools.gitfolders import git_folder
from aerix.tools.jobs import AwaitJob, JobEnd, JobRunner, StartJob
from aerix.tools.messages import RunTool, ToolResult
from aerix.tools.runner import ToolRunner
from aerix.tools.sandbox import Sandbox
from tests.pool.daemons import AERIX
from tests.runs import final, play
from tests.tools.waiting import is_gone, pid_in

BWRAP = shutil.which("bwrap") or ""
WHY_NOT = why_not(Sandbox(BWRAP, "/")) or why_not(Sandbox(BWRAP, "/", network=False))
needs_bubblewrap = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
Shell = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only temporary folder there is: all else of this test's folder is outside."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(folders, "temporary", lambda: [folder])
    return folder


@pytest.fixture
def tree(tmp_path: Path, temporary: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    module._secrets.cache_clear()
    return folder


@pytest.fixture
def sh(tree: Path) -> Shell:
    """Run a command in a sandbox around the tree."""

    def run(command: str, cwd: Path = tree, **options: object) -> "subprocess.CompletedProcess[str]":
        sandbox = Sandbox.around(BWRAP, str(cwd), **options)
        started = sandbox.start(
            ["bash", "-c", command], cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        with started:
            out, err = started.communicate(timeout=30)
        return subprocess.CompletedProcess((), started.returncode, str(out), str(err))

    return run


def git(*words: str, cwd: Path) -> None:
    subprocess.run(["git", *words], cwd=cwd, check=True, capture_output=True)


@pytest.fixture
def repository(tree: Path) -> Path:
    (tree / "file").write_text("one\n")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "first")):
        git(*words, cwd=tree)
    return tree


# --- what can be written


@needs_bubblewrap
@pytest.mark.rule("sandbox.writes")
@pytest.mark.rule("permissions.sandbox")
def test_it_writes_in_the_tree_added_folders_and_temporary_ones_only(
    sh: Shell, tree: Path, temporary: Path, tmp_path: Path
) -> None:
    added, outside = tmp_path / "added", tmp_path / "outside"
    added.mkdir()
    outside.mkdir()
    (tree / "link").symlink_to(outside)
    for folder in (
        tree,
        temporary,
        added,
        outside,
        tree / "link",
        tree / "../outside",
        tmp_path,
        Path.home(),
    ):
        sh(f"echo x > '{folder}/new'", added=(str(added),))
    written = [folder for folder in (tree, temporary, added) if (folder / "new").exists()]
    assert written == [tree, temporary, added]
    assert not [path for path in (outside, tmp_path, Path.home()) if (path / "new").exists()]


@needs_bubblewrap
@pytest.mark.rule("sandbox.writes")
@pytest.mark.parametrize(
    "way_out",
    [
        "mount -o remount,rw,bind /",
        "umount -l /",
        "unshare -Urm sh -c 'mount -o remount,rw,bind / && echo x > OUT'",
        "echo x > /proc/1/root/OUT",
        "for p in /proc/[0-9]*; do echo x > $p/root/OUT; done",
        "mknod disk b 8 0",
        "chroot . true",
    ],
)
def test_there_is_no_way_out_of_it(sh: Shell, tmp_path: Path, way_out: str) -> None:
    out = tmp_path / "outside"
    done = sh(way_out.replace("/OUT", str(out)).replace("OUT", str(out)))
    assert done.returncode != 0
    assert not out.exists()


@needs_bubblewrap
@pytest.mark.skipif(os.geteuid() != 0, reason="it takes root")
@pytest.mark.rule("sandbox.writes")
def test_root_has_its_rights_over_files_of_others_and_no_more(sh: Shell, tree: Path) -> None:
    (tree / "theirs").write_text("one\n")
    os.chown(tree / "theirs", 1000, 1000)
    (tree / "theirs").chmod(0o600)
    assert sh("echo two >> theirs && chown 1001 theirs && cat theirs").stdout == "one\ntwo\n"
    assert (tree / "theirs").stat().st_uid == 1001
    assert sh("touch /usr/new").returncode != 0
    assert sh("hostname evil").returncode != 0


@needs_bubblewrap
@pytest.mark.rule("sandbox.git")
def test_git_commits_in_it_but_changes_neither_hooks_nor_settings(sh: Shell, repository: Path) -> None:
    shutil.rmtree(repository / ".git/hooks")
    assert sh("echo two >> file && git commit -qam second && git log --oneline | wc -l").stdout == "2\n"
    before = (repository / ".git/config").read_bytes()
    for command in (
        "git config core.fsmonitor evil",
        "echo '[core]' >> .git/config",
        "mv .git/config x",
        "echo evil > .git/hooks/pre-commit",
        "mv .git/hooks x",
        "mv .git x",
    ):
        assert sh(command).returncode != 0, command
    assert (repository / ".git/config").read_bytes() == before
    assert not list((repository / ".git/hooks").iterdir())


@needs_bubblewrap
@pytest.mark.rule("sandbox.git")
def test_git_commits_in_a_worktree_and_in_a_submodule(sh: Shell, repository: Path, tmp_path: Path) -> None:
    main, side = tmp_path / "main", tmp_path / "side"
    git("clone", "-q", str(repository), str(main), cwd=tmp_path)
    git("worktree", "add", "-q", str(side), cwd=main)
    git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(repository), "sub", cwd=main)
    assert git_folder(side) == main / ".git"
    assert git_folder(main / "sub") == main / ".git/modules/sub"
    for folder in (side, main / "sub"):
        done = sh("echo two >> file && git commit -qam second && git log --oneline | wc -l", cwd=folder)
        assert (done.stdout, done.stderr) == ("2\n", "")
        assert sh("git config core.hooksPath evil", cwd=folder).returncode != 0


@needs_bubblewrap
@pytest.mark.rule("redteam.git-file")
def test_a_git_file_that_names_somebody_elses_folder_opens_nothing(
    sh: Shell, repository: Path, tmp_path: Path
) -> None:
    git("worktree", "add", "-q", str(tmp_path / "side"), cwd=repository)
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for named in (".git", ".git/worktrees/side", ".."):
        (hostile / ".git").write_text(f"gitdir: {repository / named}\n")
        assert git_folder(hostile) is None
        assert sh(f"echo evil > '{repository}/.git/evil'", cwd=hostile).returncode != 0
    (hostile / ".git").unlink()
    (hostile / ".git").symlink_to(repository / ".git")
    assert git_folder(hostile) is None
    assert sh(f"echo evil > '{repository}/.git/evil'", cwd=hostile).returncode != 0


@pytest.mark.rule("redteam.git-file")
@pytest.mark.bound("sandbox.git-file")
def test_a_git_file_that_says_nothing_or_too_much_names_none(
    tree: Path, repository: Path, tmp_path: Path, limit: Callable[[str, float], None]
) -> None:
    git("worktree", "add", "-q", str(tmp_path / "side"), cwd=repository)
    assert git_folder(tmp_path / "side") == repository / ".git"
    limit("sandbox.git-file", 10)
    assert git_folder(tmp_path / "side") is None
    other = tmp_path / "other"
    other.mkdir()
    assert git_folder(other) is None
    os.mkfifo(other / ".git")
    assert git_folder(other) is None


@needs_bubblewrap
@pytest.mark.rule("sandbox.writes")
def test_aerix_own_files_and_the_projects_settings_are_not_written(sh: Shell, tree: Path) -> None:
    (tree / ".aerix").mkdir()
    (tree / ".claude").mkdir()
    (tree / ".claude/settings.json").touch()
    config = folders.private(folders.config())
    for path in (tree / ".aerix/settings.toml", tree / ".claude/settings.json", config / "settings.toml"):
        for command in (
            f"echo x > '{path}'",
            f"mv '{path.parent}' elsewhere",
            f"mv '{path.parent.parent}' elsewhere",
        ):
            assert sh(command, added=(str(Path.home()),)).returncode != 0, command


# --- what can be seen


@needs_bubblewrap
@pytest.mark.rule("sandbox.secrets")
@pytest.mark.rule("permissions.sandbox")
def test_secrets_are_not_seen(sh: Shell, tree: Path, tmp_path: Path) -> None:
    home = Path.home()
    for path in (
        home / ".ssh/id_rsa",
        home / ".netrc",
        tree / ".env",
        tree / "deep/server.key",
        tmp_path / "far/aws/x",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("SECRET")
    (home / ".aws").symlink_to(tmp_path / "far/aws")
    (tree / "link").symlink_to(home / ".ssh/id_rsa")
    (tree / ".env.example").write_text("an example")
    done = sh(
        "cat ~/.ssh/id_rsa ~/.netrc .env deep/server.key ~/.aws/x link; ls ~/.ssh ~/.aws; cp .env y; ln .env z; cat z; mv .env w; cat w;"
        " cat .env.example"
    )
    assert "SECRET" not in done.stdout + done.stderr
    assert "an example" in done.stdout
    assert (tree / ".env").read_text() == "SECRET"


@needs_bubblewrap
@pytest.mark.rule("sandbox.secrets")
def test_a_secret_that_went_away_is_not_made_again(sh: Shell, tree: Path) -> None:
    (tree / ".env").write_text("SECRET")
    assert sh("true").returncode == 0
    (tree / ".env").unlink()
    assert sh("true").returncode == 0
    assert not (tree / ".env").exists()


@needs_bubblewrap
@pytest.mark.bound("sandbox.look")
def test_only_so_many_files_are_looked_at_for_secrets(
    sh: Shell, tree: Path, limit: Callable[[str, float], None]
) -> None:
    (tree / "folder").mkdir()
    (tree / "file").touch()
    (tree / "folder/.env").write_text("SECRET")
    limit("sandbox.look", 1)
    assert sh("cat folder/.env").stdout == "SECRET"


@needs_bubblewrap
@pytest.mark.rule("sandbox.secrets")
def test_a_tree_among_the_secrets_is_still_one_to_work_in(sh: Shell) -> None:
    folder = Path.home() / ".config/gh/mine"
    folder.mkdir(parents=True)
    assert sh("echo x > new && cat new", cwd=folder).stdout == "x\n"


@needs_bubblewrap
@pytest.mark.rule("sandbox.secrets")
def test_secrets_in_a_folder_that_is_hidden_are_hidden_with_it(sh: Shell) -> None:
    key = Path.home() / ".ssh/id_rsa"
    key.parent.mkdir(parents=True)
    key.write_text("SECRET")
    done = sh("cat .ssh/id_rsa; echo written > file && cat file", cwd=Path.home())
    assert (done.stdout, done.returncode) == ("written\n", 0)


@needs_bubblewrap
@pytest.mark.rule("sandbox.secrets")
def test_sockets_behind_which_others_work_are_not_seen(
    tree: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary / "tmux-0").mkdir()
    places = [temporary / "tmux-0/default", tree / "pool", tree / "agent", tree / "bus"]
    for place in places:
        place.touch()
    monkeypatch.setenv("TMUX", f"{places[0]},7,0")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(places[2]))
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", f"unix:path={places[3]},guid=1")
    settings = load_settings(tree, overrides=[f"pool.socket={places[1]}"])
    sandbox = sandbox_in_force(settings, tree).sandbox
    assert sandbox is not None
    (Path.home().parent / "run/bus").touch()
    command = (
        f"for p in {' '.join(map(str, places))} $XDG_RUNTIME_DIR/bus; do test -f $p && echo $p; done; true"
    )
    with sandbox.start(["bash", "-c", command], tree, stdout=subprocess.PIPE, text=True) as started:
        out, _ = started.communicate(timeout=30)
    assert (str(out), started.returncode) == ("", 0)


# --- the network


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@needs_bubblewrap
@pytest.mark.rule("permissions.network")
def test_the_network_is_cut_where_it_is_not_wanted(sh: Shell, port: int) -> None:
    command = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected"
    assert sh(command).stdout == "connected\n"
    assert sh(command, network=False).stdout == ""


# --- commands and jobs in it


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


@pytest.fixture
def runner(place: Path) -> Iterator[Ref]:
    sandbox = Sandbox.around(BWRAP, str(place), network=False)
    ref = start(ToolRunner(place, place, place / "spool", {"bash": 4000}, sandbox), "a1.tools")
    yield ref
    ref.stop()
    assert ref.join(10) is not None


def run(runner: Ref, command: str, **values: object) -> ToolResult:
    message = RunTool("c1", "bash", {"command": command, **values}, 100_000)
    result: ToolResult = runner.ask(message, message.limit_s)
    return result


def asleep(pid: int) -> str:
    """How long a process sleeps, for one that does."""
    with suppress(OSError):
        name, *words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        return words[0] if name == "sleep" else ""
    return ""


@needs_bubblewrap
@pytest.mark.rule("sandbox.processes")
def test_a_commands_processes_are_ended_as_without_a_sandbox(runner: Ref, place: Path) -> None:
    assert run(runner, "echo $((1 + 1)); exit 3").text == "2\n[exit 3]"
    left = run(runner, "sleep 4711.1 & setsid sleep 4711.2 &")
    assert left.text == "[2 processes still running]\n[exit 0]"
    late = run(
        runner, "setsid sleep 4711.3 & trap 'echo bye; exit' TERM; sleep 4711.4 & wait", timeout_secs=1
    )
    assert late.text == "bye\n[timeout after 1s]"
    pids = {name: pid for pid in os_linux.descendants(os.getpid()) if (name := asleep(pid))}
    assert sorted(pids) == ["4711.1", "4711.2"]
    runner.stop()
    assert all(is_gone(pid, 10) for pid in pids.values())


@needs_bubblewrap
@pytest.mark.rule("sandbox.processes")
def test_the_next_command_can_end_what_one_left_running(runner: Ref, place: Path) -> None:
    run(runner, "sleep 4712.1 & echo $! > left")
    assert run(runner, "kill $(cat left)").exit == 0
    assert is_gone(pid_in(place / "left"), 10)


@needs_bubblewrap
@pytest.mark.rule("sandbox.remark")
def test_a_command_that_the_sandbox_stopped_says_what_helps(runner: Ref, place: Path) -> None:
    said = run(runner, "echo x > /usr/new").text
    assert f"[sandbox: commands write only in {place} and in temporary folders; --add-dir DIR adds" in said
    assert said.endswith("[exit 1]")
    assert "[sandbox: the network is cut off" in run(runner, "exec 3<>/dev/tcp/192.0.2.1/9").text
    assert "[sandbox" not in run(runner, "echo x > /usr/new; true").text


@pytest.mark.rule("sandbox.remark")
def test_a_sandbox_that_does_not_start_says_so(fake: Callable[[str | None], Path], place: Path) -> None:
    fake('echo "bwrap: Can\'t mount x" >&2; exit 1')
    broken = start(
        ToolRunner(place, place, place, {}, Sandbox(shutil.which("bwrap") or "", str(place))), "broken"
    )
    try:
        said = run(broken, "echo ran").text
    finally:
        broken.stop()
        assert broken.join(10) is not None
    why = "it does not start, so the command did not run; tools.sandbox=off does without it"
    assert said == f"bwrap: Can't mount x\n[sandbox: {why}]\n[exit 1]"


@needs_bubblewrap
@pytest.mark.rule("sandbox.git")
def test_a_file_that_would_have_git_read_other_settings_goes_with_the_command_that_made_it(
    repository: Path,
) -> None:
    side, common = repository / "side", repository / ".git/commondir"
    git("worktree", "add", "-q", str(side), cwd=repository)
    sandbox = Sandbox.around(BWRAP, str(repository))
    runner = start(ToolRunner(repository, repository, repository / "spool", {"bash": 4000}, sandbox), "tools")
    try:
        result = run(
            runner,
            "echo evil > .git/worktrees/side/commondir; echo ../evil > .git/commondir; echo it is there",
        )
        assert "it is there" in result.text
        assert not common.exists()
        assert "evil" not in (repository / ".git/worktrees/side/commondir").read_text()
        run(runner, "(trap 'echo ../evil > .git/commondir; exit' TERM; while :; do sleep 0.01; done) &")
    finally:
        runner.stop()
        assert runner.join(10) is not None
    assert not common.exists()


@needs_bubblewrap
@pytest.mark.rule("sandbox.processes")
def test_jobs_run_in_it_too(place: Path) -> None:
    jobs = start(JobRunner(place, Sandbox(BWRAP, str(place))), "jobs")
    try:
        jobs.ask(StartJob("a1/j1", "echo x > mine; echo x > /usr/new", 30, 1000, str(place / "spool")), 30)
        end: JobEnd = jobs.ask(AwaitJob("a1/j1"), 30)
    finally:
        jobs.stop()
        assert jobs.join(10) is not None
    assert end.exit == 1
    assert "[sandbox: commands write only in" in end.text
    assert (place / "mine").exists()


# --- whether there is one


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], Path]:
    """Make the only ``bwrap`` there is a script, or none; gives the file in which it counts its starts."""

    def make(script: str | None) -> Path:
        folder, count = tmp_path / "bin", tmp_path / "count"
        folder.mkdir(exist_ok=True)
        if script is not None:
            (folder / "bwrap").write_text(f"#!/bin/sh\necho >> '{count}'\n{script}\n")
            (folder / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        return count

    return make


NONE = "bubblewrap is not installed (the package bubblewrap has it)"
BROKEN = "bubblewrap does not work here: no permissions"
AUTO = '; "auto" would do without a sandbox'
BREAK = "echo 'bwrap: no permissions' >&2; exit 1"


@pytest.mark.rule("sandbox.in-force")
@pytest.mark.parametrize(("script", "why"), [(None, NONE), (BREAK, BROKEN)])
def test_without_one_commands_run_bare_unless_one_is_asked_for(
    fake: Callable[[str | None], Path], tmp_path: Path, script: str | None, why: str
) -> None:
    fake(script)
    bare = sandbox_in_force(load_settings(tmp_path), tmp_path)
    assert (bare.sandbox, bare.sentence) == (
        None,
        f"no sandbox: commands may do all that you may, because {why}",
    )
    for override, said in (
        ("tools.sandbox=on", f'tools.sandbox = "on", but {why}; "auto" would do without a sandbox'),
        (
            "tools.network=false",
            f"tools.network = false needs the sandbox of commands, and there is none: {why}",
        ),
    ):
        with pytest.raises(Refused) as refused:
            sandbox_in_force(load_settings(tmp_path, overrides=[override]), tmp_path)
        assert (refused.value.code, refused.value.message) == ("no_sandbox", said)


@pytest.mark.rule("sandbox.in-force")
def test_it_is_left_out_where_it_is_not_wanted_and_nothing_is_tried(
    fake: Callable[[str | None], Path], tmp_path: Path
) -> None:
    count = fake("exit 0")
    bare = sandbox_in_force(load_settings(tmp_path, overrides=["tools.sandbox=off"]), tmp_path)
    assert (bare.sandbox, bare.sentence) == (
        None,
        "no sandbox: commands may do all that you may, because tools.sandbox is off",
    )
    assert not count.exists()


@pytest.mark.rule("sandbox.in-force")
def test_that_it_works_is_tried_once_and_said(fake: Callable[[str | None], Path], tmp_path: Path) -> None:
    count, added = fake("exit 0"), tmp_path / "added"
    settings = load_settings(tmp_path)
    for _ in range(3):
        found = sandbox_in_force(settings, tmp_path, [added])
    assert found.sandbox is not None
    assert found.sandbox.added == (str(added),)
    assert found.sentence == (
        f"sandbox: commands write in {tmp_path}, {added} and temporary folders only, do not see the usual places of secrets, and use the network"
    )
    assert count.read_text() == "\n"
    (folders.cache() / "sandbox").write_text("elsewhere")
    sandbox_in_force(settings, tmp_path)
    assert count.read_text() == "\n\n"


@pytest.mark.rule("sandbox.in-force")
@pytest.mark.bound("sandbox.probe")
def test_one_that_does_not_end_does_not_work(
    fake: Callable[[str | None], Path], tmp_path: Path, limit: Callable[[str, float], None]
) -> None:
    fake("exec /bin/sleep 1000")
    limit("sandbox.probe", 0.05)
    found = sandbox_in_force(load_settings(tmp_path), tmp_path)
    assert found.sentence.endswith("because bubblewrap does not work here: it did not end in 0.05 s")


@pytest.mark.rule("sandbox.in-force")
def test_one_that_lies_in_the_working_directory_is_data(
    fake: Callable[[str | None], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = fake("exit 0")
    monkeypatch.setenv("PATH", ".")
    monkeypatch.chdir(tmp_path / "bin")
    assert sandbox_in_force(load_settings(tmp_path), tmp_path).sandbox is None
    assert not count.exists()


@pytest.mark.rule("sandbox.in-force")
@pytest.mark.parametrize("override", ["tools.sandbox=on", "tools.network=false"])
def test_a_run_that_asks_for_one_starts_nothing_without(
    fake: Callable[[str | None], Path], git_repo: Path, tmp_path: Path, override: str
) -> None:
    fake(BREAK)
    model = play(tmp_path, {"x": [final()]})
    done = subprocess.run(
        [*AERIX, "-p", "play x", "--model", model, "-c", override],
        cwd=git_repo,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.endswith(f"{BROKEN}{'' if 'network' in override else AUTO} [no_sandbox]\n")
