"""A working tree that is taken again and again: what a second look costs and sees, and its limits."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aerix.actors import Refused
from aerix.git import GitError
from aerix.session import worktree
from aerix.session.objects import Objects, Trees, read_object
from aerix.session.snapshot import Snapshots, TakeLastPoint, TakePoint, TakeSnapshot
from aerix.session.stores import prune
from aerix.session.was import About
from aerix.session.worktree import WorkingTree
from tests.session.undone import sh

Limit = Callable[[str, float], None]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "sessions/p/s/trees"


@pytest.fixture
def tree(git_repo: Path, store: Path) -> WorkingTree:
    sh("echo '*.o' > .gitignore; mkdir build; touch build/a.o", git_repo)
    made = WorkingTree(git_repo, store)
    assert made.take()
    return made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of git from here on."""
    real, calls = worktree.git, []

    def counted(args: tuple[str, ...], *rest: object, **options: object) -> object:
        calls.append(args[0])
        return real(args, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(worktree, "git", counted)
    return calls


def added(root: Path) -> str:
    """The tree that git would make of it."""
    env = {**os.environ, "GIT_INDEX_FILE": str(root.parent / "index")}
    for command in ("read-tree --empty", "add --all"):
        subprocess.run(["git", *command.split()], cwd=root, env=env, check=True)
    return subprocess.run(
        ["git", "write-tree"], cwd=root, env=env, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.rule("snapshot.cheap")
def test_where_nothing_is_new_git_is_not_asked(tree: WorkingTree, asked: list[str]) -> None:
    assert not tree.take()
    (tree.root / "README.md").write_text("changed\n")
    assert tree.take()
    (tree.root / "src/hello.py").unlink()
    assert tree.take()
    assert asked == []
    (tree.root / "new").write_text("new\n")
    assert tree.take()
    assert asked


@pytest.mark.rule("snapshot.tree")
@pytest.mark.parametrize(
    "change",
    [
        "echo x > new; mkdir -p a/b; echo x > a/b/c",
        "rm -r src; echo x > src",
        "rm README.md; mkdir README.md; echo x > README.md/x; touch README.md/y.o build/b.o",
        "chmod +x README.md; mv src lib; ln -s lib src",
        "echo x > $'odd\\n\\xff'; echo x > $'tab\\there'",
        "git add .; git commit -qm more; git rm -q README.md; echo x > z; git add z",
        "echo > .gitignore",
        "echo n > kept; echo kept >> .git/info/exclude",
    ],
)
def test_a_later_tree_is_what_git_add_all_would_make(tree: WorkingTree, change: str) -> None:
    sh(change, tree.root)
    assert tree.take()
    assert tree.id == added(tree.root)
    again = WorkingTree(tree.root, tree.objects.folder.parent)
    again.take()
    assert (again.id, again.about) == (tree.id, tree.about)


@pytest.mark.rule("snapshot.tree")
def test_two_changes_within_a_moment_are_both_seen(tree: WorkingTree) -> None:
    file = tree.root / "README.md"
    ids = set()
    for n in range(20):
        file.write_text(f"{n:3}\n")
        tree.take()
        ids.add(tree.id)
    assert len(ids) == 20


@pytest.mark.rule("snapshot.tree")
def test_a_file_of_the_tree_stays_one_when_it_is_ignored(tree: WorkingTree) -> None:
    (tree.root / "notes").write_text("mine\n")
    tree.take()
    (tree.root / ".gitignore").write_text("notes\n*.o\n")
    tree.take()
    assert tree.covers("notes")


@pytest.mark.rule("snapshot.tree")
@pytest.mark.rule("undo.restores")
def test_blobs_are_the_bytes_of_the_files_whatever_git_would_convert(git_repo: Path, store: Path) -> None:
    for name in ("lines", "wide", "pointer", "same"):
        (git_repo / name).write_bytes(b"a\r\nb\r\n" if name != "same" else b"plain\n")
    (git_repo / "wide").write_bytes("wide\r\n".encode("utf-16-le"))
    sh(
        "git config filter.short.clean 'tr a-z A-Z'; printf '* text=auto\\nwide working-tree-encoding=UTF-16LE\\n"
        "pointer filter=short -text\\n' > .gitattributes; git add .; git commit -qm all 2>/dev/null",
        git_repo,
    )
    tree = WorkingTree(git_repo, store)
    tree.take()
    env = {**os.environ, "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(store / "objects")}
    for name in ("lines", "wide", "pointer", "same"):
        shown = subprocess.run(
            ["git", "cat-file", "blob", f"{tree.id}:{name}"],
            cwd=git_repo,
            env=env,
            capture_output=True,
            check=True,
        )
        assert shown.stdout == (git_repo / name).read_bytes(), name


@pytest.mark.rule("snapshot.tree")
def test_what_git_does_not_keep_is_kept_beside_it(tree: WorkingTree, store: Path) -> None:
    sh("chmod 640 README.md; mkdir -p empty/er; chmod 700 empty; chmod 750 src", tree.root)
    tree.take()
    about = About.load(read_object(store, tree.about, 1_000_000) or b"")
    assert about.root == str(tree.root)
    assert about.files == {"README.md": 0o640}
    assert about.folders == {"empty": 0o700, "src": 0o750}
    assert about.bare == {"build", "empty", "empty/er"}
    assert about.uncovered == {"build/a.o"}


def test_folders_may_be_nested_a_thousand_deep(store: Path) -> None:
    trees = Trees(Objects(store))
    path = "d/" * 1200 + "f"
    trees.put(path, ("100644", "1" * 40))
    first = trees.write()
    trees.put(path, None)
    assert trees.write() != first
    assert list(trees.folders) == [""]


# --- points -------------------------------------------------------------------------------------------------------


@pytest.mark.rule("undo.calls-found")
def test_what_is_not_covered_is_told_once_for_each_tree(git_repo: Path, store: Path) -> None:
    sh("echo '*.o' > .gitignore; touch a.o", git_repo)
    snapshots = Snapshots(git_repo, store)
    first, second = snapshots.point(TakePoint()), snapshots.point(TakePoint())
    (git_repo / "x").write_text("x\n")
    third = snapshots.point(TakePoint())
    assert (first.uncovered, second.uncovered, third.uncovered) == (["a.o"], None, ["a.o"])
    assert first.tree == second.tree != third.tree


# --- limits -------------------------------------------------------------------------------------------------------


@pytest.mark.bound("snapshot.entries")
@pytest.mark.rule("snapshot.size-bounded")
def test_a_tree_with_too_many_files_is_refused_by_name_and_write_is_undone_all_the_same(
    git_repo: Path, store: Path, limit: Limit
) -> None:
    limit("snapshot.entries", 2)
    snapshots = Snapshots(git_repo, store)
    with pytest.raises(Refused, match=r"more than 2 files and folders \(snapshot.entries\)"):
        snapshots.take(TakeSnapshot())
    point = snapshots.point(TakePoint("README.md"))
    assert point.tree is None
    assert point.kept
    assert "snapshot.entries" in point.problem


@pytest.mark.bound("undo.entries")
@pytest.mark.rule("snapshot.size-bounded")
def test_in_a_large_tree_the_first_call_is_snapshot_and_the_end(
    git_repo: Path, store: Path, limit: Limit
) -> None:
    limit("undo.entries", 2)
    snapshots = Snapshots(git_repo, store)
    assert snapshots.point(TakePoint()).tree
    later = snapshots.point(TakePoint())
    assert later.tree is None
    assert later.problem.endswith("undo goes back to before the first call, to no later one")
    last = snapshots.last(TakeLastPoint())
    assert last
    assert last.tree


@pytest.mark.bound("undo.kept")
def test_only_so_many_files_beside_the_tree_are_kept(tmp_path: Path, store: Path, limit: Limit) -> None:
    limit("undo.kept", 2)
    (tmp_path / "plain").mkdir()
    snapshots = Snapshots(tmp_path / "plain", store)
    for name in ("a", "b", "a"):
        assert snapshots.point(TakePoint(name)).kept
    with pytest.raises(Refused, match=r"at most 2 files of a request \(undo.kept\)"):
        snapshots.point(TakePoint("c"))


@pytest.mark.bound("undo.store")
@pytest.mark.rule("undo.store-capped")
def test_a_store_that_is_full_takes_no_more(git_repo: Path, store: Path, limit: Limit) -> None:
    snapshots = Snapshots(git_repo, store)
    assert snapshots.point(TakePoint()).tree
    limit("undo.store", 3000)
    (git_repo / "noise").write_bytes(os.urandom(4000))
    point = snapshots.point(TakePoint())
    assert (point.tree, point.kept) == (None, None)
    assert point.problem == "this session's store for undo is full (3,000 bytes, undo.store)"
    (git_repo / "noise").unlink()
    assert snapshots.point(TakePoint()).tree


@pytest.mark.bound("undo.stores")
@pytest.mark.rule("undo.store-capped")
def test_the_stores_of_all_sessions_are_capped_and_the_oldest_goes(tmp_path: Path, limit: Limit) -> None:
    stores = [tmp_path / f"p{n}/s{n}/trees" for n in range(4)]
    for n, one in enumerate(stores):
        (one / "objects").mkdir(parents=True)
        (one / "objects/x").write_bytes(b"x" * 100)
        (one / "size").write_text("100")
        os.utime(one / "size", (n, n))
        one.parent.with_suffix(".jsonl").touch()
    (stores[1] / "size").unlink()  # of a session that was killed: measured
    limit("undo.stores", 250)
    with stores[1].parent.with_suffix(".jsonl").open() as log:
        import fcntl

        fcntl.flock(log, fcntl.LOCK_EX)  # somebody works in it
        prune(stores[3], 100)
    assert [one.exists() for one in stores] == [False, True, False, True]
    assert (stores[1] / "size").read_text() == "100"


def test_a_leash_that_is_let_go_ends_a_snapshot(git_repo: Path, store: Path) -> None:
    theirs, ours = os.pipe()
    tree = WorkingTree(git_repo, store, theirs)
    tree.take()
    (git_repo / "README.md").write_text("x\n")
    os.close(ours)
    with pytest.raises(GitError, match="nobody waits"):
        tree.take()
    os.close(theirs)
