import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aerix.actors import Refused, start
from aerix.git import GitError
from aerix.session.snapshot import DiffText, DiffTrees, Snapshots, TakeSnapshot, Tree, diff, take


def sh(command: str, cwd: Path) -> str:
    done = subprocess.run(["sh", "-ec", command], cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "session/store"


@pytest.fixture
def snap(git_repo: Path, store: Path) -> Callable[[], Tree]:
    def take_one() -> Tree:
        tree = take(git_repo, store)
        assert tree is not None
        return tree

    return take_one


Snap = Callable[[], Tree]


def state(repo: Path) -> str:
    """Everything of a repository that a snapshot must leave alone."""
    return sh("sha1sum .git/index; find .git -type f | sort; git stash list; git status --porcelain", repo)


@pytest.mark.rule("snapshot.tree")
@pytest.mark.rule("snapshot.objects-aside")
def test_index_objects_and_files_of_the_repository_are_left_alone(
    git_repo: Path, store: Path, snap: Snap
) -> None:
    (git_repo / "new.txt").write_text("new\n")
    (git_repo / "README.md").write_text("changed\n")
    sh("git add README.md", git_repo)
    (git_repo / "README.md").write_text("changed again\n")
    before = state(git_repo)
    tree = snap()
    assert state(git_repo) == before
    assert any((store / "objects").rglob("[0-9a-f]*"))
    assert sorted(path.name for path in store.iterdir()) == ["objects"]
    shown = subprocess.run(
        ["git", "show", f"{tree.id}:README.md"],
        cwd=git_repo,
        env={**os.environ, "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(store / "objects")},
        capture_output=True,
        check=True,
    )
    assert shown.stdout == b"changed again\n"


@pytest.mark.rule("snapshot.own-edits-only")
def test_what_was_not_committed_before_is_not_in_the_diff(git_repo: Path, store: Path, snap: Snap) -> None:
    (git_repo / "README.md").write_text("the user's edit\n")
    (git_repo / "users.txt").write_text("the user's file\n")
    before = snap()
    (git_repo / "agents.txt").write_text("the agent's file\n")
    text = diff(before, snap(), store).text
    assert "agents.txt" in text
    assert "user" not in text


@pytest.mark.rule("snapshot.new-files")
def test_new_deleted_and_changed_files_and_modes_are_shown(git_repo: Path, store: Path, snap: Snap) -> None:
    before = snap()
    (git_repo / "grün new.txt").write_text("new\n")
    (git_repo / "README.md").unlink()
    (git_repo / "src/hello.py").chmod(0o755)
    (git_repo / "link").symlink_to("src")
    found = diff(before, snap(), store)
    assert found == DiffText(found.text)
    assert "+++ b/grün new.txt" in found.text
    assert "new file mode 100644" in found.text
    assert "deleted file mode 100644\n" in found.text
    assert "old mode 100644\nnew mode 100755" in found.text
    assert "new file mode 120000" in found.text
    assert diff(before, before, store) == DiffText("")


@pytest.mark.rule("snapshot.new-files")
def test_the_diff_can_be_applied(git_repo: Path, store: Path, snap: Snap) -> None:
    before = snap()
    (git_repo / "a.txt").write_text("new\n")
    (git_repo / "README.md").write_text("other\n")
    text = diff(before, snap(), store).text
    sh("rm a.txt; git checkout --quiet .", git_repo)
    subprocess.run(["git", "apply"], input=text.encode(), cwd=git_repo, check=True)
    assert (git_repo / "a.txt").read_text() == "new\n"
    assert (git_repo / "README.md").read_text() == "other\n"


@pytest.mark.rule("snapshot.new-files")
@pytest.mark.parametrize(
    "change",
    [
        "rm README.md; mkdir README.md; echo x > README.md/x",
        "rm -r src; echo x > src",
        "mv src elsewhere; ln -s elsewhere src",
        "rm README.md; ln -s nowhere README.md",
        "git rm --quiet -r --cached .; echo x > new",
        "git mv README.md OTHER.md; echo x >> OTHER.md",
        "git add -N . ; echo x > intended; git add -N intended",
    ],
)
def test_a_tree_is_what_git_add_all_would_make(git_repo: Path, snap: Snap, change: str) -> None:
    sh(change, git_repo)
    made = snap().id
    sh("git add --all", git_repo)
    assert made == sh("git write-tree", git_repo).strip()


@pytest.mark.rule("snapshot.new-files")
def test_a_pipe_in_a_files_place_is_a_deleted_file(git_repo: Path, store: Path, snap: Snap) -> None:
    """``git add --all`` fails on it as a whole."""
    before = snap()
    sh("rm README.md; mkfifo README.md; mkfifo other", git_repo)
    text = diff(before, snap(), store).text
    assert "deleted file mode 100644" in text
    assert "other" not in text


@pytest.mark.rule("snapshot.tree")
def test_a_merge_with_conflicts_has_a_tree(git_repo: Path, snap: Snap) -> None:
    sh(
        "git checkout -q -b x; echo x > README.md; rm src/hello.py; git commit -qam x; git checkout -q main;"
        " echo y > README.md; echo z > src/hello.py; git commit -qam y; git merge x || true",
        git_repo,
    )
    made = snap().id
    sh("git add --all", git_repo)
    assert made == sh("git write-tree", git_repo).strip()


@pytest.mark.rule("snapshot.tree")
def test_a_change_right_after_the_index_was_written_is_seen(git_repo: Path, store: Path, snap: Snap) -> None:
    """Of the same size and in the same second: only the index's own time tells that its entry cannot be trusted."""
    for n in range(5):
        (git_repo / "README.md").write_text(f"version {n} a\n")
        sh("git add README.md", git_repo)
        before = snap()
        (git_repo / "README.md").write_text(f"version {n} b\n")
        assert f"+version {n} b" in diff(before, snap(), store).text


@pytest.mark.rule("snapshot.tree")
def test_a_snapshot_may_be_asked_for_from_any_folder_of_the_tree(
    git_repo: Path, store: Path, snap: Snap
) -> None:
    (git_repo / "new.txt").write_text("new\n")
    assert take(git_repo / "src", store) == snap()


@pytest.mark.rule("snapshot.tree")
def test_a_worktree_and_a_split_index_are_snapshot(git_repo: Path, tmp_path: Path, store: Path) -> None:
    sh(
        "git worktree add --quiet ../wörk; git config core.splitIndex true; git update-index --split-index",
        git_repo,
    )
    for folder in (git_repo, git_repo.parent / "wörk"):
        (folder / "new.txt").write_text("new\n")
        before = sh("find .git -type f | sort", git_repo)
        tree = take(folder, store)
        assert sh("find .git -type f | sort", git_repo) == before
        sh("git add --all", folder)
        assert tree is not None
        assert tree.id == sh("git write-tree", folder).strip()


@pytest.mark.rule("snapshot.no-commits")
def test_a_repository_without_commits_is_snapshot(tmp_path: Path, store: Path) -> None:
    repo = tmp_path / "empty"
    repo.mkdir()
    sh("git init --quiet", repo)
    before = take(repo, store)
    (repo / "first.txt").write_text("first\n")
    after = take(repo, store)
    assert before is not None
    assert after is not None
    assert "+first" in diff(before, after, store).text


@pytest.mark.bound("snapshot.file")
@pytest.mark.rule("snapshot.size-bounded")
def test_a_large_file_is_left_out_and_named_when_it_changed(
    git_repo: Path, store: Path, snap: Snap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIX_BOUND_SNAPSHOT_FILE", "100")
    (git_repo / "large.bin").write_bytes(b"x" * 101)
    (git_repo / "README.md").write_text("y" * 200)
    before = snap()
    assert sorted(before.left_out) == ["README.md", "large.bin"]
    assert diff(before, snap(), store) == DiffText("", [])
    (git_repo / "large.bin").write_bytes(b"x" * 102)
    (git_repo / "larger.bin").write_bytes(b"x" * 103)
    (git_repo / "small").write_text("x\n")
    found = diff(before, snap(), store)
    assert found.untracked == ["large.bin", "larger.bin"]
    assert "larger" not in found.text
    assert "+++ b/small" in found.text


@pytest.mark.bound("snapshot.total")
@pytest.mark.bound("snapshot.files")
@pytest.mark.rule("snapshot.size-bounded")
@pytest.mark.parametrize(("bound", "value"), [("SNAPSHOT_TOTAL", "10"), ("SNAPSHOT_FILES", "2")])
def test_all_files_together_are_bounded(
    git_repo: Path, snap: Snap, monkeypatch: pytest.MonkeyPatch, bound: str, value: str
) -> None:
    monkeypatch.setenv(f"AERIX_BOUND_{bound}", value)
    for name in "abc":
        (git_repo / name).write_text("x" * 5)
    assert list(snap().left_out) == ["c"]


@pytest.mark.bound("diff.bytes")
@pytest.mark.rule("snapshot.size-bounded")
def test_a_long_diff_is_cut_at_a_line_with_a_note(
    git_repo: Path, store: Path, snap: Snap, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snap()
    (git_repo / "long.txt").write_text("a line\n" * 1000)
    after = snap()
    monkeypatch.setenv("AERIX_BOUND_DIFF_BYTES", "500")
    found = diff(before, after, store)
    assert found.cut
    assert found.text.endswith("+a line\n[the diff is cut here, at 500 bytes]\n")


@pytest.mark.bound("snapshot.nested")
@pytest.mark.rule("snapshot.nested")
def test_nested_repositories_are_left_out_and_named_when_they_changed(
    git_repo: Path, store: Path, snap: Snap, monkeypatch: pytest.MonkeyPatch
) -> None:
    sh(
        "mkdir empty one; git init -q empty; git init -q one; cd one; echo x > x; git add .; git commit -qm x; cd ..;"
        " git -c protocol.file.allow=always submodule --quiet add ./one sub; git commit -qm sub",
        git_repo,
    )
    before = snap()
    assert sorted(before.left_out) == ["empty/", "one/", "sub"]
    assert diff(before, snap(), store) == DiffText("", [])
    (git_repo / "sub/x").write_text("changed\n")
    (git_repo / "empty/new").write_text("new\n")
    assert diff(before, snap(), store) == DiffText("", ["empty/", "sub"])
    monkeypatch.setenv("AERIX_BOUND_SNAPSHOT_NESTED", "0")
    after = snap()
    assert diff(after, after, store).untracked == ["empty/", "one/", "sub"]


@pytest.mark.rule("snapshot.outside-git")
def test_outside_a_repository_there_is_none(tmp_path: Path, store: Path) -> None:
    assert take(tmp_path, store) is None
    assert not store.exists()


EVIL = """
cat > {evil} <<'END'
#!/bin/sh
echo "$0 $*" >> {ran}
cat
END
chmod +x {evil}
for hook in post-index-change pre-commit post-checkout fsmonitor-watchman; do cp {evil} .git/hooks/$hook; done
git config core.fsmonitor {evil}
git config filter.evil.clean {evil}
git config filter.evil.smudge {evil}
git config filter.evil.process {evil}
git config filter.evil.required true
git config diff.evil.textconv {evil}
git config diff.evil.command {evil}
git config diff.external {evil}
git config core.pager {evil}
git config core.sshCommand {evil}
git config core.alternateRefsCommand {evil}
git config gpg.program {evil}
echo '* filter=evil diff=evil' > .gitattributes
"""


@pytest.mark.rule("snapshot.git-quiet")
def test_nothing_that_a_repository_configures_is_run(git_repo: Path, tmp_path: Path, store: Path) -> None:
    evil, ran = tmp_path / "evil", tmp_path / "ran"
    sh(
        "git init -q sub; cd sub; echo x > x; git add .; git commit -qm x; cd ..; git add sub 2>&1; git commit -qm sub",
        git_repo,
    )
    for folder in (git_repo, git_repo / "sub"):
        sh(EVIL.format(evil=evil, ran=ran), folder)
    os.utime(git_repo / "README.md", (1, 1))
    os.utime(git_repo / "sub/x", (1, 1))
    (git_repo / "new.txt").write_text("new\n")
    before = take(git_repo, store)
    (git_repo / "README.md").write_text("# Scratch\n\nA repository to work on.\n")
    after = take(git_repo, store)
    assert before is not None
    assert after is not None
    assert "+A repository to work on." in diff(before, after, store).text
    assert not ran.exists(), ran.read_text()


def test_the_evil_repository_of_the_test_before_is_evil(git_repo: Path, tmp_path: Path) -> None:
    evil, ran = tmp_path / "evil", tmp_path / "ran"
    sh(EVIL.format(evil=evil, ran=ran), git_repo)
    subprocess.run(["git", "add", "--all"], cwd=git_repo, capture_output=True, check=False)
    assert ran.exists()


@pytest.mark.rule("snapshot.git-quiet")
def test_glob_and_grep_run_nothing_either(git_repo: Path, tmp_path: Path) -> None:
    from aerix.tools.gitfiles import files

    evil, ran = tmp_path / "evil", tmp_path / "ran"
    sh(EVIL.format(evil=evil, ran=ran), git_repo)
    os.utime(git_repo / "README.md", (1, 1))
    assert "README.md" in files(git_repo)
    assert not ran.exists(), ran.read_text()


def test_line_ends_that_git_would_convert_are_no_failure(git_repo: Path, store: Path, snap: Snap) -> None:
    sh("git config core.autocrlf true; git config core.safecrlf true", git_repo)
    before = snap()
    (git_repo / "new.txt").write_bytes(b"one\r\ntwo\n")
    assert "+one" in diff(before, snap(), store).text


def test_an_object_folder_with_an_odd_name_is_found(tmp_path: Path, store: Path) -> None:
    repo = tmp_path / 'a:b "c\\d'
    repo.mkdir()
    sh("git init -q; echo x > x; git add x; git commit -qm x; rm x", repo)
    before = take(repo, store)
    (repo / "x").write_text("y\n")
    after = take(repo, store)
    assert before is not None
    assert after is not None
    assert "+y" in diff(before, after, store).text


def test_an_unreadable_file_is_left_out(git_repo: Path, snap: Snap, monkeypatch: pytest.MonkeyPatch) -> None:
    (git_repo / "secret").write_text("x")
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "secret" and real(path, mode))
    assert list(snap().left_out) == ["secret"]


def test_a_store_that_cannot_be_written_is_a_sentence(git_repo: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GitError, match=r"the snapshot could not be stored: Not a directory"):
        take(git_repo, tmp_path / "file/store")


@pytest.mark.rule("snapshot.tree")
def test_an_actor_takes_and_compares_them(git_repo: Path, store: Path) -> None:
    snapshots = start(Snapshots(git_repo, store), "snapshots")
    before = snapshots.ask(TakeSnapshot(), 30)
    (git_repo / "new.txt").write_text("new\n")
    after = snapshots.ask(TakeSnapshot(), 30)
    assert "+new" in snapshots.ask(DiffTrees(before, after), 30).text
    snapshots.stop()
    snapshots.join(30)


@pytest.mark.bound("git.call")
@pytest.mark.rule("bounds.git-diff")
def test_git_that_does_not_end_is_a_refusal_and_no_crash(
    git_repo: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "bin/git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    snapshots = start(Snapshots(git_repo, store), "snapshots")
    try:
        with monkeypatch.context() as patch:
            patch.setenv("AERIX_BOUND_GIT_CALL", "0.1")
            patch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
            with pytest.raises(Refused, match=r"git rev-parse did not end in 0\.1 s") as refused:
                snapshots.ask(TakeSnapshot(), 30)
        assert refused.value.code == "git_timeout"
        assert snapshots.ask(TakeSnapshot(), 30) is not None
    finally:
        snapshots.stop()
        snapshots.join(30)
