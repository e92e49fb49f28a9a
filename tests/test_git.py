import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aerix.git import GitError, filters_off, git
from tests.tools.waiting import is_gone, pid_in


def test_what_git_says_is_given_back(git_repo: Path) -> None:
    assert git(["ls-files", "-z"], git_repo).paths() == ["README.md", "src/hello.py"]


def test_a_failure_is_a_sentence(git_repo: Path) -> None:
    with pytest.raises(GitError) as error:
        git(["cat-file", "-p", "0000"], git_repo)
    assert error.value.code == "git_failed"
    assert error.value.message == "git cat-file failed: fatal: Not a valid object name 0000"
    assert git(["cat-file", "-p", "0000"], git_repo, may_fail=True).exit == 128


def test_a_missing_git_is_a_sentence(git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(GitError, match="the git program was not found"):
        git(["status"], git_repo)
    with pytest.raises(GitError, match="the folder /nowhere does not exist"):
        git(["status"], Path("/nowhere"))


@pytest.mark.rule("bounds.git-diff")
def test_over_its_time_git_is_killed_with_what_it_started(git_repo: Path, tmp_path: Path) -> None:
    """An alias is the shortest way to a git that hangs; the test's own setting starts it, not the repository's."""
    pid = tmp_path / "pid"
    setting = f"alias.hang=!echo $$ > {pid}; sleep 100; sleep 100"
    with pytest.raises(GitError, match=r"git hang did not end in 2 s") as error:
        git(["hang"], git_repo, config=[setting], deadline_s=2)
    assert error.value.code == "git_timeout"
    assert is_gone(pid_in(pid), 10)


@pytest.mark.rule("snapshot.given-up")
def test_a_git_that_nobody_waits_for_any_more_is_killed(git_repo: Path, tmp_path: Path) -> None:
    pid, (leash, other_end) = tmp_path / "pid", os.pipe()
    setting = f"alias.hang=!echo $$ > {pid}; sleep 100; sleep 100"
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(git, ["hang"], git_repo, config=[setting], leash=leash)
        running = pid_in(pid)
        os.close(other_end)
        with pytest.raises(GitError, match="nobody waits for git hang any more") as error:
            asked.result()
    os.close(leash)
    assert error.value.code == "git_given_up"
    assert is_gone(running, 10)


def test_more_than_it_may_say_is_cut(git_repo: Path) -> None:
    done = git(["cat-file", "-p", "HEAD:README.md"], git_repo, max_bytes=5)
    assert (done.out, done.cut) == (b"# Scr", True)


@pytest.mark.bound("git.output")
def test_more_than_anything_may_say_is_a_failure(git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIX_BOUND_GIT_OUTPUT", "5")
    with pytest.raises(GitError, match="git ls-files said more than 5 bytes"):
        git(["ls-files", "-z"], git_repo)


def test_variables_of_another_repository_are_not_passed_on(
    git_repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "nonsense")
    assert git(["rev-parse", "--show-toplevel"], git_repo).out.strip() == os.fsencode(git_repo)


@pytest.mark.rule("snapshot.git-quiet")
def test_every_configured_filter_is_switched_off(git_repo: Path) -> None:
    with (git_repo / ".git/config").open("a") as file:
        file.write('[filter "a.b c"]\n\tclean = evil\n\trequired = true\n[filter "d"]\n\tprocess = evil\n')
    assert filters_off(git_repo) == [
        *(f"filter.a.b c.{rest}" for rest in ("clean=", "smudge=", "process=", "required=false")),
        *(f"filter.d.{rest}" for rest in ("clean=", "smudge=", "process=", "required=false")),
    ]


@pytest.mark.rule("snapshot.git-quiet")
def test_a_filter_that_cannot_be_switched_off_is_refused(git_repo: Path) -> None:
    with (git_repo / ".git/config").open("a") as file:
        file.write('[filter "a=b"]\n\tclean = evil\n')
    with pytest.raises(GitError, match="has a name that cannot be overridden"):
        filters_off(git_repo)
