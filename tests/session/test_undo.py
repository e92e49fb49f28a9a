"""Undo: what comes back, what is left alone, and what nobody can trick it into."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from aerix.session.history import NoTarget
from aerix.session.undo import SINCE, Lost, Plan
from tests.session.test_snapshot import EVIL
from tests.session.undone import Acted, sh, state

MIXED = [
    "printf 'a\\r\\nb\\r\\n' > crlf.txt",
    "chmod 755 plain.txt",
    "chmod 600 keys.txt",
    "mv plain.txt moved.txt",
    "rm docs/one.md",
    "mkdir -p new/deep/er; echo x > new/deep/er/file",
    "mkdir empty-new",
    "rmdir empty-old",
    "ln -s moved.txt link",
    "ln -sfn docs pointer",
    "head -c 5000 /dev/urandom > noise.bin",
    "printf 'x\\0y' > data.bin",
    "rm run.sh; mkdir run.sh; echo in > run.sh/inside",
    "rm -r lib; echo now a file > lib",
    "chmod 700 docs",
    "echo more >> 'with blank.txt'",
    "echo more >> $'new\\nline.txt'",
    "echo more >> $'b\\xffd.txt'",
    "echo new > $'n\\xe9w.txt'",
    "mv 'with blank.txt' $'tab\\there.txt'",
    "sed -i s/two/2/ crlf-old.txt",
    "truncate -s 0 keys.txt",
    "rm link; echo file > link",
    "cp -p run-me run-me-too; chmod -x run-me",
    "rm -f target; ln -s /etc/passwd target",
    "git init -q --bare x.git 2>/dev/null || true; rm -rf x.git",
    "mkdir -p a/b; mv docs/two.md a/b/; rmdir empty-new",
    "printf 'no newline' > docs/three.md",
    "chmod 4755 run-me-too; chmod 1777 a",
    "rm -rf new",
    "echo '*.tmp' >> .gitignore",
    "mv moved.txt plain.txt; chmod 640 plain.txt",
    "rm data.bin noise.bin",
]


@pytest.fixture
def home(own_home: Path) -> Path:
    """The folder of the project's sessions."""
    return own_home / "sessions/p"


@pytest.fixture
def acted(git_repo: Path, home: Path) -> Acted:
    return Acted(git_repo, home)


def steps(done: Plan, root: Path) -> list[str]:
    return [str(Path(step.path).relative_to(root)) for step in done.steps]


def left(done: Plan, root: Path) -> dict[str, str]:
    return {str(Path(path).relative_to(root)): why for path, why in done.left}


UNTOUCHED = """
export GIT_OPTIONAL_LOCKS=0
git status --porcelain; git rev-parse HEAD || true; sha1sum $(git rev-parse --git-path index) || true
"""


def fill(root: Path) -> None:
    """Files of every kind, some of them tracked where there is a repository."""
    sh(
        r"""
        echo plain > plain.txt; echo secret > keys.txt; chmod 640 keys.txt
        printf 'one\r\ntwo\r\n' > crlf-old.txt; printf 'mixed\r\nends\n' > mixed.txt
        mkdir docs lib empty-old a; chmod 750 docs; echo 1 > docs/one.md; echo 2 > docs/two.md; echo 3 > docs/three.md
        printf '#!/bin/sh\n' > run.sh; cp run.sh run-me; chmod 755 run.sh run-me
        echo l > lib/l; ln -s nowhere target; ln -s lib pointer
        echo b > 'with blank.txt'; echo n > $'new\nline.txt'; echo f > $'b\xffd.txt'; head -c 3000 /dev/urandom > old.bin
        """,
        root,
    )


def fifty(acted: Acted) -> None:
    """Fifty calls of all kinds in several turns."""
    for n, command in enumerate(MIXED):
        if n % 5 == 0:
            acted.turn()
        acted.bash(command)
    for n in range(8):
        acted.write(f"written/{n % 5}.txt", b"line\r\n" * n)
        acted.write("mixed.txt", b"rewritten %d\n" % n)
    acted.write("old.bin", bytes(range(256)))
    acted.end()
    assert acted.calls == 50


@pytest.mark.rule("undo.restores")
@pytest.mark.rule("undo.never-reset")
@pytest.mark.rule("undo.back")
@pytest.mark.rule("snapshot.before-changes")
@pytest.mark.parametrize("kind", ["no commits", "nested", "crlf"])
def test_fifty_calls_are_undone_to_every_byte_and_mode_and_done_again(
    tmp_path: Path, home: Path, kind: str
) -> None:
    root = tmp_path / "repo"
    root.mkdir()
    if kind == "nested":
        sh("git init -q; echo o > outer; git add .; git commit -qm o; mkdir inner", root)
        root /= "inner"
    sh("git init -q", root)
    fill(root)
    if kind == "crlf":
        sh("echo '* text=auto eol=lf' > .gitattributes; git config core.autocrlf input", root)
    if kind != "no commits":
        sh("git add . 2>/dev/null; git commit -qm all", root)
    before = state(tmp_path)
    repository = sh(UNTOUCHED, root)
    acted = Acted(root, home)
    fifty(acted)
    after = state(tmp_path)
    done = acted.undo()
    assert done.left == []
    assert state(tmp_path) == before
    assert sh(UNTOUCHED, root) == repository
    with pytest.raises(NoTarget, match="nothing is left to undo"):
        acted.offer()
    assert acted.undo(back=True).left == []
    assert state(tmp_path) == after
    assert acted.undo().left == []
    assert state(tmp_path) == before


# --- what is left alone -------------------------------------------------------------------------------------------


@pytest.mark.rule("undo.changed-since")
def test_what_changed_since_is_left_unless_that_is_forced_and_even_then_it_is_kept(acted: Acted) -> None:
    root = acted.cwd
    acted.bash("echo agent > new; echo agent >> README.md; rm src/hello.py")
    acted.end()
    (root / "README.md").write_text("the user's\n")
    (root / "users").write_text("mine\n")
    done = acted.undo()
    assert steps(done, root) == ["new", "src/hello.py"]
    assert left(done, root) == {"README.md": SINCE}
    assert (root / "README.md").read_text() == "the user's\n"
    forced = acted.undo(force=True)
    assert steps(forced, root) == ["README.md"]
    assert (root / "README.md").read_text() == "# Scratch\n\nA repository to work in.\n"
    assert acted.undo(back=True).left == []
    assert (root / "README.md").read_text() == "the user's\n"
    assert not (root / "src/hello.py").exists()
    assert (root / "users").read_text() == "mine\n"


@pytest.mark.rule("undo.changed-since")
def test_what_the_user_did_between_two_prompts_is_not_undone(acted: Acted) -> None:
    root = acted.cwd
    acted.bash("echo one > a; echo one > b")
    acted.end()
    (root / "users").write_text("mine\n")
    (root / "b").write_text("mine\n")
    acted.prompt("the second")
    acted.bash("echo two > c; echo two >> b")
    acted.end()
    done = acted.undo("start", force=False)
    assert steps(done, root) == ["a", "c"]
    assert left(done, root) == {"b": SINCE}
    assert (root / "users").read_text() == "mine\n"


@pytest.mark.rule("undo.to-turn")
def test_it_goes_back_to_a_turn_a_prompt_or_the_start(acted: Acted) -> None:
    file = acted.cwd / "file"
    for prompt in ("the second", "the third", "a question"):
        for turn in (1, 2):
            acted.bash(f"echo {acted.calls + 1} >> file; chmod 60{turn} file")
            acted.turn()
        acted.end()
        acted.prompt(prompt)
    contents = {None: "1\n2\n3\n4\n", "t8": "1\n2\n3\n4\n5\n", "t5": "1\n2\n3\n", "3": "1\n2\n3\n4\n"}
    for to, text in contents.items():
        acted.undo(to)
        assert file.read_text() == text
        acted.undo(back=True)
        assert file.read_text() == "1\n2\n3\n4\n5\n6\n"
    for to in ("start", "0", "1", "t1"):
        acted.undo(to)
        assert not file.exists()
        acted.undo(back=True)
    assert acted.offer("t10").plan.steps == []
    assert acted.offer().to == "prompt 3 (the third)"
    assert acted.offer("t8").to == "the calls of turn t8"


@pytest.mark.rule("undo.to-turn")
@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("7", "this session has 1 prompt; there is no prompt 7"),
        ("t9", "this session has the turns t1 to t1; there is no t9"),
        (
            "yesterday",
            "--to takes start, the number of a prompt, or a turn (t3), not 'yesterday'",
        ),
    ],
)
def test_a_point_that_is_not_there_is_a_sentence(acted: Acted, to: str, said: str) -> None:
    acted.bash("echo x > x")
    acted.end()
    with pytest.raises(NoTarget) as error:
        acted.offer(to)
    assert str(error.value) == said


def test_a_session_that_changed_nothing_says_so(acted: Acted) -> None:
    for back in (False, True):
        with pytest.raises(NoTarget):
            acted.offer(back=back)


@pytest.mark.rule("undo.restores")
def test_folders_and_files_that_are_closed_for_writing_are_undone(acted: Acted) -> None:
    root = acted.cwd
    sh(
        "mkdir -p ro/in; echo 1 > ro/f; echo 2 > ro/in/g; echo 3 > ro/h; chmod 400 ro/f ro/in/g; chmod 555 ro/in ro",
        root,
    )
    before = state(root)
    acted.bash("chmod u+w ro ro/f; echo x >> ro/f; rm ro/h; chmod 555 ro; chmod 400 ro/f")
    acted.bash("chmod -R u+w ro; rm -r ro/in; echo new > ro/new; chmod 500 ro")
    acted.end()
    after = state(root)
    assert acted.undo().left == []
    assert state(root) == before
    assert acted.undo(back=True).left == []
    assert state(root) == after
    sh("chmod -R u+w ro", root)


# --- what is not in a tree ----------------------------------------------------------------------------------------


@pytest.mark.rule("undo.outside-git")
def test_outside_a_repository_write_and_edit_are_undone_and_commands_are_not(
    tmp_path: Path, home: Path
) -> None:
    root = tmp_path / "plain"
    root.mkdir()
    (root / "old.txt").write_bytes(b"\xff\r\n")
    (root / "old.txt").chmod(0o604)
    (root / "link").symlink_to("old.txt")
    before = state(root)
    acted = Acted(root, home)
    acted.write("made/for/it.txt", b"new")
    acted.write("link", b"through the link")
    acted.write("made/for/it.txt", b"again")
    acted.bash("echo x > by-bash")
    acted.turn()
    acted.write("old.txt", b"at last")
    acted.end()
    assert acted.offer().limits == "outside a repository"
    acted.undo("t2")
    assert (root / "old.txt").read_bytes() == b"through the link"
    done = acted.undo()
    assert done.left == []
    (root / "by-bash").unlink()
    assert state(root) == before
    acted.undo(back=True)
    assert (root / "old.txt").read_bytes() == b"at last"
    assert (root / "made/for/it.txt").read_bytes() == b"again"


@pytest.mark.rule("undo.outside-git")
def test_files_that_write_touches_and_no_tree_has_are_undone_too(acted: Acted, tmp_path: Path) -> None:
    root = acted.cwd
    sh("echo '*.log' > .gitignore; git init -q nested; echo n > nested/file; echo old > old.log", root)
    elsewhere = tmp_path / "elsewhere.txt"
    before = state(tmp_path)
    acted.write("new.log", b"x")
    acted.write("old.log", b"x")
    acted.write("nested/file", b"x")
    acted.write(str(elsewhere), b"x")
    acted.write("plain", b"x")
    acted.end()
    (root / "old.log").write_bytes(b"mine")
    done = acted.undo()
    assert left(done, root) == {"old.log": SINCE}
    acted.undo(force=True)
    assert state(tmp_path) == before


@pytest.mark.rule("undo.uncovered-named")
def test_what_is_not_covered_is_named_and_left_alone(
    acted: Acted, limit: Callable[[str, float], None]
) -> None:
    root = acted.cwd
    limit("snapshot.file", 1000)
    sh(
        "printf 'build/\\n.env\\n' > .gitignore; mkdir build; echo o > build/o; echo s > .env; git init -q nested",
        root,
    )
    (root / "large").write_bytes(b"x" * 1001)
    acted.bash("echo n > build/n; echo n > nested/n; echo x >> large; echo x > small")
    acted.bash("echo > .gitignore; truncate -s 5 large; head -c 2000 /dev/zero > small")
    acted.end()
    offer = acted.offer()
    assert offer.not_covered == ("large", "nested/", ".env", "build", "small")
    done = acted.undo()
    assert steps(done, root) == [".gitignore"]
    assert set(left(done, root)) == {".env", "build/n", "build/o", "large", "small"}
    assert (root / ".env").read_text() == "s\n"
    assert (root / "nested/n").exists()


@pytest.mark.bound("undo.named")
@pytest.mark.rule("undo.uncovered-named")
def test_many_names_are_counted(acted: Acted, limit: Callable[[str, float], None]) -> None:
    limit("undo.named", 2)
    sh("echo '*.o' > .gitignore; touch {a,b,c,d,e}.o", acted.cwd)
    acted.bash("echo x > x")
    acted.end()
    assert (acted.offer().not_covered, acted.offer().more) == (("a.o", "b.o"), 3)


# --- said again ---------------------------------------------------------------------------------------------------


def prompts(acted: Acted, *names: str) -> None:
    """A prompt for each name, whose call appends the name to the file ``file``."""
    for name in names:
        acted.prompt(name)
        acted.bash(f"echo {name} >> file")
        acted.end()


def lines(acted: Acted) -> str:
    file = acted.cwd / "file"
    return "".join(file.read_text().split()) if file.exists() else ""


def nothing_is_left(acted: Acted) -> bool:
    try:
        acted.offer()
    except NoTarget as why:
        return "nothing is left to undo" in str(why)
    return False


@pytest.mark.rule("undo.repeated")
def test_said_again_it_goes_one_prompt_further_until_nothing_is_left(acted: Acted) -> None:
    prompts(acted, "a", "b")
    acted.prompt("a question")
    prompts(acted, "c")
    for said, after in (("5 (c)", "ab"), ("3 (b)", "a"), ("2 (a)", "")):
        assert acted.offer().to == f"prompt {said}"
        assert acted.undo().left == []
        assert lines(acted) == after
    assert nothing_is_left(acted)
    acted.undo(back=True)
    assert lines(acted) == "abc"
    assert acted.offer().to == "prompt 5 (c)"


@pytest.mark.rule("undo.repeated")
def test_a_prompt_after_an_undo_is_the_first_to_be_undone_and_those_that_are_undone_are_skipped(
    acted: Acted,
) -> None:
    prompts(acted, "a", "b", "c")
    acted.undo()
    acted.undo()
    prompts(acted, "d")
    assert lines(acted) == "ad"
    for after in ("a", ""):
        assert acted.undo().left == []
        assert lines(acted) == after
    assert nothing_is_left(acted)
    acted.undo(back=True)
    assert lines(acted) == "ad"
    assert acted.offer().to == "prompt 5 (d)"


@pytest.mark.rule("undo.repeated")
@pytest.mark.rule("undo.to-turn")
def test_a_target_is_where_the_next_undo_goes_on_from_also_when_it_brings_something_back(
    acted: Acted,
) -> None:
    prompts(acted, "a", "b", "c")
    acted.bash("echo C >> file")
    acted.end()
    acted.undo(f"t{acted.turns}")
    assert lines(acted) == "ab"
    acted.undo("2")
    assert lines(acted) == ""
    acted.undo("4")
    assert lines(acted) == "ab"
    acted.undo()
    assert lines(acted) == "a"
    acted.undo()
    assert nothing_is_left(acted)


@pytest.mark.rule("undo.repeated")
def test_a_part_of_a_prompt_is_undone_and_then_the_rest_of_it(acted: Acted) -> None:
    prompts(acted, "a")
    acted.turn()
    acted.bash("echo A >> file")
    acted.end()
    acted.undo(f"t{acted.turns}")
    assert (lines(acted), acted.offer().to) == ("a", "prompt 2 (a)")
    acted.undo()
    assert lines(acted) == ""


@pytest.mark.rule("undo.repeated")
def test_a_prompt_whose_calls_changed_nothing_is_a_step_of_its_own(acted: Acted) -> None:
    prompts(acted, "a")
    acted.prompt("look")
    acted.bash("cat file")
    acted.end()
    offer = acted.offer()
    assert (offer.to, offer.plan.steps, offer.earlier) == ("prompt 3 (look)", [], True)
    acted.undo()
    assert acted.offer().to == "prompt 2 (a)"
    acted.undo(back=True)
    assert acted.offer().to == "prompt 3 (look)"


@pytest.mark.rule("undo.repeated")
@pytest.mark.rule("undo.changed-since")
def test_what_an_undo_left_is_gone_past_and_is_what_force_takes_first(acted: Acted) -> None:
    root = acted.cwd
    prompts(acted, "a")
    acted.prompt("b")
    acted.bash("echo b > b; echo b > other")
    acted.end()
    (root / "b").write_text("mine\n")
    assert left(acted.undo(), root) == {"b": SINCE}
    assert acted.offer().to == "prompt 2 (a)"
    assert acted.offer(force=True).to == "prompt 3 (b)"
    assert steps(acted.undo(force=True), root) == ["b"]
    assert steps(acted.undo(force=True), root) == ["file"]
    assert nothing_is_left(acted)


@pytest.mark.rule("undo.repeated")
def test_a_prompt_of_which_all_changed_since_is_left_once_and_then_gone_past(acted: Acted) -> None:
    root = acted.cwd
    prompts(acted, "a")
    acted.prompt("b")
    acted.bash("echo b > b")
    acted.end()
    (root / "b").write_text("mine\n")
    for stepped in ([], ["file"]):
        done = acted.undo()
        assert (steps(done, root), left(done, root)) == (stepped, {"b": SINCE})
    assert (root / "b").read_text() == "mine\n"


@pytest.mark.rule("undo.repeated")
@pytest.mark.rule("undo.lost")
def test_what_cannot_be_put_back_is_tried_twice_and_then_gone_past(acted: Acted) -> None:
    root = acted.cwd
    (root / "users").write_text("mine\n")
    prompts(acted, "a")
    acted.prompt("b")
    acted.bash("echo agent > users")
    acted.end()
    blob = sh("git hash-object --stdin <<< mine", root).strip()
    (acted.place.folder / "trees/objects" / blob[:2] / blob[2:]).unlink()
    for to in ("3 (b)", "3 (b)", "2 (a)"):
        assert acted.offer().to == f"prompt {to}"
        assert "users" in left(acted.undo(), root)
    assert lines(acted) == ""


@pytest.mark.rule("undo.repeated")
def test_an_older_log_does_not_tell_how_far_its_undos_went(acted: Acted) -> None:
    prompts(acted, "a", "b", "c")
    acted.undo()
    acted.undo(back=True)
    acted.undo()
    log = acted.place.log
    log.write_bytes(re.sub(rb',"first":\d+', b"", log.read_bytes()))
    acted.undo()
    assert lines(acted) == "a"


# --- kills --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("undo.interrupted")
def test_a_call_whose_end_nobody_saw_is_undone_only_where_that_is_forced(acted: Acted) -> None:
    root = acted.cwd
    acted.bash("echo one > a")
    acted.bash("echo two > b; echo two >> a")  # and then Aerix was killed
    assert steps(acted.undo("t1"), root) == []
    done = acted.undo("t1", force=True)
    assert steps(done, root) == ["a", "b"]
    acted.undo(back=True)
    acted.prompt("the next one")
    acted.bash("echo three > c")
    acted.end()
    assert steps(acted.undo(), root) == ["c"]
    assert set(left(acted.undo("start"), root)) == {"a", "b"}


class Killed(BaseException):
    pass


@pytest.mark.rule("undo.atomic")
@pytest.mark.parametrize("at", [1, 4, 7])
def test_an_undo_that_is_killed_leaves_each_file_old_or_new_and_the_next_one_finishes(
    acted: Acted, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    root = acted.cwd
    sh("for n in 1 2 3 4 5; do echo $n > old$n; done", root)
    before = state(root)
    acted.bash("for n in 1 2 3 4 5; do echo new >> old$n; done; echo x > a; mkdir d; echo x > d/b")
    acted.end()
    after, happened = state(root), 0
    for name in ("replace", "unlink", "rmdir"):
        real = getattr(os, name)

        def act(*args: object, real: Callable[..., None] = real, **options: object) -> None:
            nonlocal happened
            happened += "aerix-undo" not in str(args[0]) or len(args) == 2
            if happened == at:
                raise Killed
            real(*args, **options)

        monkeypatch.setattr(f"aerix.session.restore.os.{name}", act)
    with pytest.raises(Killed):
        acted.undo()
    monkeypatch.undo()
    shown = {path: value for path, value in state(root).items() if b"aerix-undo" not in path}
    assert all(value in (before.get(path), after.get(path)) for path, value in shown.items())
    done = acted.undo()
    assert done.left == []
    assert state(root) == before
    assert acted.undo(back=True).left == []
    assert state(root) == after


# --- tricks -------------------------------------------------------------------------------------------------------


@pytest.mark.rule("undo.never-reset")
def test_a_link_in_a_folders_place_leads_nowhere(acted: Acted, tmp_path: Path) -> None:
    root, elsewhere = acted.cwd, tmp_path / "elsewhere"
    acted.bash("echo x >> src/hello.py; mkdir d; echo x > d/new; rm README.md")
    acted.end()
    shutil.copytree(root / "src", elsewhere)
    (elsewhere / "new").write_text("x\n")
    before = state(elsewhere)
    for name in ("src", "d"):
        shutil.rmtree(root / name)
        (root / name).symlink_to(elsewhere)
    done = acted.undo()
    assert set(left(done, root)) == {"src/hello.py", "d"}
    acted.undo(force=True)
    assert state(elsewhere) == before
    assert (root / "README.md").exists()


@pytest.mark.rule("undo.never-reset")
def test_folders_and_files_in_each_others_place_are_left(acted: Acted) -> None:
    root = acted.cwd
    acted.bash("echo agent > a; echo agent >> README.md; mkdir d; echo agent > d/f")
    acted.end()
    sh(
        "rm a README.md; mkdir a README.md; echo mine > a/mine; echo mine > README.md/mine; rm -r d; echo mine > d",
        root,
    )
    before = state(root)
    done = acted.undo(force=True)
    assert {"README.md"} <= set(left(done, root))
    assert {name for name, _, data in ((k, *v[1:]) for k, v in state(root).items()) if data == b"mine\n"} >= {
        os.fsencode(root / "a/mine"),
        os.fsencode(root / "README.md/mine"),
    }
    acted.undo(back=True)
    assert state(root) == before


@pytest.mark.rule("undo.git-quiet")
def test_nothing_that_a_repository_configures_is_run(acted: Acted, tmp_path: Path) -> None:
    root, ran = acted.cwd, tmp_path / "ran"
    sh(EVIL.format(evil=tmp_path / "evil", ran=ran), root)
    before = state(root)
    acted.bash("echo agent >> README.md; rm src/hello.py; echo x > x")
    acted.end()
    assert acted.undo().left == []
    assert state(root) == before
    assert not ran.exists(), ran.read_text()


@pytest.mark.rule("undo.lost")
def test_snapshots_that_are_gone_or_damaged_are_a_sentence_or_leave_their_file(acted: Acted) -> None:
    root = acted.cwd
    (root / "users").write_text("mine\n")
    acted.bash("echo agent > users; echo agent > new")
    acted.end()
    objects = acted.place.folder / "trees/objects"
    blob = sh("git hash-object --stdin <<< mine", root).strip()
    path = objects / blob[:2] / blob[2:]
    path.unlink()
    done = acted.undo()
    assert left(done, root) == {"users": "its content is not there any more"}
    assert not (root / "new").exists()
    shutil.rmtree(objects)
    with pytest.raises(Lost, match="not there any more"):
        acted.offer()
