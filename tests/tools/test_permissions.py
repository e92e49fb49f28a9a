"""Permission rules: what a rule fits, which one wins, what the modes leave free, and what needs a rule in any mode."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aerix import folders
from aerix.permissions import MODES, Mode, Permissions
from aerix.tools.pathrules import Places, pattern_of, read_pattern
from aerix.tools.permissions import BadRule, Judge, Judgement, read_rule
from aerix.tools.secrets import NO_SECRETS, SECRETS

Asks = Callable[..., Judgement]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only temporary folder there is: all else of the test's folder is outside."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(folders, "temporary", lambda: [folder])
    return folder


@pytest.fixture
def tree(tmp_path: Path, temporary: Path) -> Path:
    (tmp_path / "tree/.git").mkdir(parents=True)
    (tmp_path / "tree/.git/HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "tree/src").mkdir()
    return tmp_path / "tree"


@pytest.fixture
def judge(tree: Path) -> Asks:
    """What is to become of a call: its tool, and its command or path."""

    def ask(tool: str, what: str = "", **rules: object) -> Judgement:
        cwd = rules.pop("cwd", tree)
        assert isinstance(cwd, Path)
        name = {"bash": "command", "glob": "pattern", "agent": "definition"}.get(tool, "path")
        return Judge(Permissions(**rules), cwd).judge(tool, {name: what} if what else {})  # type: ignore[arg-type]

    return ask


# --- rules --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("permissions.bad-rule")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("bahs(rm *)", "'bahs(rm *)': there is no tool bahs; did you mean bash?"),
        ("xyzzy", "'xyzzy': there is no tool xyzzy; there are read, write, edit"),
        ("", "'' is no rule, such as bash, bash(git push *) or edit(src/**)"),
        ("bash(rm", "'bash(rm' is no rule, such as"),
        ("plan(x)", "'plan(x)': plan takes no pattern; write plan"),
    ],
)
def test_a_text_that_is_no_rule_says_why(text: str, why: str) -> None:
    with pytest.raises(BadRule) as bad:
        read_rule(text)
    assert str(bad.value).startswith(why)


@pytest.mark.rule("permissions.claude-names")
@pytest.mark.parametrize(
    ("rule", "tool", "what", "fits"),
    [
        ("Bash", "bash", "x", True),
        ("Bash(*)", "bash", "x", True),
        ("Bash(git push:*)", "bash", "git push origin", True),
        ("Bash(git push:*)", "bash", "git pushx", False),
        ("Bash(npm run test*)", "bash", "npm run test:unit", True),
        ("Edit(src/**)", "edit", "src/a/b", True),
        ("Edit(src/**)", "write", "src/a", True),
        ("MultiEdit(src/**)", "edit", "src/a", True),
        ("Write(src/**)", "write", "src/a", True),
        ("Write(src/**)", "edit", "src/a", False),
        ("Edit(/src/**)", "edit", "src/a", True),
        ("Read(./.env)", "read", ".env", True),
        ("Read(.env)", "grep", "src/.env", True),
        ("Grep", "grep", "src", True),
        ("Grep", "read", "src", False),
        ("Glob(src/**)", "glob", "src/*.py", False),
        ("Task", "agent", "x", True),
        ("Agent(reviewer)", "agent", "reviewer", True),
        ("Agent(reviewer)", "agent", "", False),
        ("WebFetch(domain:x)", "bash", "x", False),
        ("mcp__memory__store", "bash", "x", False),
    ],
)
def test_claudes_rules_fit_what_they_fit_there(
    judge: Asks, rule: str, tool: str, what: str, *, fits: bool
) -> None:
    assert (judge(tool, what, deny=(rule,)).verdict == "refuse") == fits


@pytest.mark.rule("permissions.rules")
@pytest.mark.parametrize(
    ("rule", "path", "fits"),
    [
        ("edit(src/**)", "src/a", True),
        ("edit(src/**)", "src/a/b.py", True),
        ("edit(src/**)", "a/src/b", False),
        ("edit(src/**)", "srcs/a", False),
        ("edit(src)", "src/a/b", True),
        ("edit(src)", "lib/src/b", True),
        ("edit(./src)", "lib/src/b", False),
        ("edit(src/)", "src/b", True),
        ("edit(*.py)", "a/b.py", True),
        ("edit(*.py)", "a/b.pyc", False),
        ("edit(src/*.py)", "src/b.py", True),
        ("edit(src/*.py)", "src/a/b.py", False),
        ("edit(**/b.py)", "src/a/b.py", True),
        ("edit(src/**/b.py)", "src/b.py", True),
        ("edit(src/**/b.py)", "src/a/a/b.py", True),
        ("edit(src/[ab].py)", "src/b.py", True),
        ("edit(src/?.py)", "src/ab.py", False),
        ("edit(src/../lib/*)", "lib/x", True),
        ("edit(src/**)", "src/../lib/x", False),
        ("edit(lib/*)", "src/../lib/x", True),
        ("write(src/**)", "src/a", False),
    ],
)
def test_a_pattern_of_paths_is_read_as_git_reads_them(
    judge: Asks, rule: str, path: str, *, fits: bool
) -> None:
    assert (judge("edit", path, mode="ask", allow=(rule,)).verdict == "run") == fits
    assert (judge("edit", path, deny=(rule,)).verdict == "refuse") == fits


@pytest.mark.rule("permissions.rules")
@pytest.mark.parametrize(
    ("rule", "command", "fits"),
    [
        ("bash(git push *)", "git push", True),
        ("bash(git push *)", "git push -f origin", True),
        ("bash(git push *)", "git pushx", False),
        ("bash(git push)", "git push origin", False),
        ("bash(git*)", "gitk", True),
        ("bash(* --help)", "git --help", True),
        ("bash(git * main)", "git push origin main", True),
        ("bash(git * main)", "git main", False),
        ("bash(ls \\*.py)", "ls *.py", True),
        ("bash(ls \\*.py)", "ls a.py", False),
        ("bash(a.c)", "abc", False),
        ("bash", "anything > at all", True),
    ],
)
def test_a_pattern_of_commands_knows_the_star_only(
    judge: Asks, rule: str, command: str, *, fits: bool
) -> None:
    assert (judge("bash", command, mode="ask", allow=(rule,)).verdict == "run") == fits
    assert (judge("bash", command, deny=(rule,)).verdict == "refuse") == fits


@pytest.mark.rule("permissions.rules")
def test_a_denial_wins_over_a_question_and_that_over_an_allowance(judge: Asks) -> None:
    rules: dict[str, object] = {"allow": ("bash",), "ask": ("bash(git *)",), "deny": ("bash(git push *)",)}
    verdicts = [judge("bash", command, **rules).verdict for command in ("ls", "git log", "git push")]
    assert verdicts == ["run", "ask", "refuse"]
    granted = [judge("bash", c, granted=("bash",), **rules).verdict for c in ("ls", "git log", "git push")]
    assert granted == ["run", "run", "refuse"], "what the user grants lifts a question, and no denial"


@pytest.mark.rule("permissions.compound")
@pytest.mark.parametrize(
    "command",
    [
        "git status; rm -rf ~", "git status && rm x", "git status | sh", "git status & rm x", "git status\nrm x",
        "git status $(rm x)", "git status `rm x`", "git status > ~/.bashrc", "git status <<E\nE\nrm x", "X=1 git status",
        "PATH=/tmp/evil git status", "(git status)", "git status '", "git status # '\nrm x", "sudo git status", "./git status",
    ],
)  # fmt: skip
def test_an_allowed_command_allows_nothing_beside_it(judge: Asks, command: str) -> None:
    assert judge("bash", command, mode="ask", allow=("bash(git status *)",)).verdict == "ask"


PARTS = st.lists(
    st.sampled_from(["git status", "git status -s 'a; b'", "rm x", 'echo "a && b"', "make"]),
    min_size=1,
    max_size=5,
)


@pytest.mark.rule("permissions.compound")
@given(parts=PARTS, by=st.sampled_from([";", " && ", "||", " | ", "\n", "&"]))
def test_a_compound_command_is_allowed_where_each_part_is(parts: list[str], by: str) -> None:
    judge = Judge(Permissions("ask", allow=("bash(git status *)", "bash(echo *)")), Path("/"))
    allowed = all(part.startswith(("git", "echo")) for part in parts)
    assert (judge.judge("bash", {"command": by.join(parts)}).verdict == "run") == allowed


@pytest.mark.rule("permissions.compound")
def test_a_command_that_cannot_be_read_is_asked_about_where_rules_deny_some(judge: Asks) -> None:
    assert judge("bash", "echo 'open", deny=("bash(rm *)",)).verdict == "ask"
    assert judge("bash", "echo 'open").verdict == "run"


# --- modes --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("permissions.modes")
@pytest.mark.parametrize(
    ("tool", "what", "free"),
    [
        ("read", "src/a", MODES), ("grep", "src", MODES), ("glob", "*.py", MODES), ("repo_map", "", MODES), ("plan", "", MODES),
        ("context", "", MODES), ("agent", "x", MODES), ("read", "/etc/hostname", MODES), ("write", "src/a", MODES[1:]),
        ("edit", "src/a", MODES[1:]), ("bash", "ls", MODES[2:]), ("bash", "echo $(id) > /etc/x", MODES[2:]),
    ],
)  # fmt: skip
def test_each_mode_leaves_its_calls_free(judge: Asks, tool: str, what: str, free: tuple[Mode, ...]) -> None:
    assert tuple(mode for mode in MODES if judge(tool, what, mode=mode).verdict == "run") == free


# --- what needs a rule in every mode ------------------------------------------------------------------------------


@pytest.mark.rule("permissions.outside-tree")
@pytest.mark.parametrize("tool", ["write", "edit"])
def test_writing_outside_the_tree_needs_a_rule(
    judge: Asks, tmp_path: Path, tree: Path, temporary: Path, tool: str
) -> None:
    outside = tmp_path / "other/f"
    for path in (str(outside), "../other/f", "src/../../other/f", "~/f"):
        assert judge(tool, path).verdict == "ask", path
        assert judge(tool, path, allow=(tool,)).verdict == "ask", "a bare rule speaks of the tree"
    assert judge(tool, str(outside), allow=(f"edit(/{outside})",)).verdict == "run"
    assert judge(tool, str(outside), folders=(str(tmp_path / "other"),)).verdict == "run"
    assert judge(tool, str(temporary / "f")).verdict == "run"
    assert judge(tool, "f", cwd=tree / "src").verdict == "run"
    assert judge(tool, "../f", cwd=tree / "src").verdict == "run", "the tree is the repository"
    assert judge(tool, str(outside)).rules == (f"edit(/{outside})",)


@pytest.mark.rule("permissions.outside-tree")
def test_a_home_folder_in_git_is_not_the_tree_of_what_lies_in_it(judge: Asks, temporary: Path) -> None:
    home = folders.home()
    (home / ".git").mkdir()
    (home / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (home / "project").mkdir()
    assert judge("write", "f", cwd=home / "project").verdict == "run"
    assert judge("write", "~/.bashrc", cwd=home / "project").verdict == "ask"


@pytest.mark.rule("permissions.symlinks")
def test_links_do_not_lead_out_of_the_tree(judge: Asks, tmp_path: Path, tree: Path) -> None:
    (tmp_path / "other").mkdir()
    (tree / "out").symlink_to(tmp_path / "other")
    (tree / "new").symlink_to(tmp_path / "other/new")
    (tree / "key").symlink_to(folders.home() / ".ssh/id_rsa")
    for path in ("out/f", "out/../f", "new", "./src/../out/f"):
        assert judge("write", path).verdict == "ask", path
        assert judge("write", path, mode="ask", allow=("edit(out/**)", "edit(new)")).verdict == "ask", path
    assert judge("read", "key").verdict == "ask"
    assert judge("edit", "out/f", deny=("edit(out/**)",)).verdict == "refuse", (
        "a denial holds for the name too"
    )


SECRET = (
    "~/.ssh/id_ed25519", "~/.ssh", "~/.aws/credentials", "~/.netrc", ".env", "src/.env.local", "deploy.key", "id_rsa",
    "~/x/../.ssh/config", "/proc/self/environ", "/etc/shadow",
)  # fmt: skip
WIDE = ("read", "edit", "grep", "read(**)", "edit(**)", "read(~/**)", "edit(~/**)")


@pytest.mark.rule("permissions.secrets")
@pytest.mark.parametrize("tool", ["read", "grep", "edit"])
def test_secrets_need_a_rule(judge: Asks, tool: str) -> None:
    for path in SECRET:
        found = judge(tool, path)
        assert (found.verdict, found.why) == ("ask", "may show secrets and needs an allow rule"), path
        assert judge(tool, path, allow=found.rules).verdict == "run", path
        named = "." not in path.rpartition("/")[2][:1] and "~" not in path and path[0] != "/"
        assert judge(tool, path, allow=WIDE).verdict == ("run" if named else "ask"), path


@pytest.mark.rule("permissions.secrets")
@pytest.mark.parametrize(
    "path", [".env.example", ".env.sample", "src/environment.py", "~/ssh/x", "keys.py", "src/.env/lib/a.py"]
)
def test_what_only_looks_like_a_secret_is_none(judge: Asks, path: str) -> None:
    assert judge("read", path).verdict == "run"


@pytest.mark.rule("permissions.secrets")
def test_a_search_that_begins_at_secrets_needs_a_rule(judge: Asks) -> None:
    assert judge("glob", "~/.ssh/*").verdict == "ask"
    assert judge("glob", "~/*").verdict == "run"
    assert judge("glob", "~/.ssh/*", allow=("read(~/.ssh/**)",)).verdict == "run"


@pytest.mark.rule("permissions.secrets")
def test_a_search_leaves_out_what_may_not_be_read(tree: Path) -> None:
    judge = Judge(
        Permissions(allow=("read(src/.env)",), deny=("read(private/**)",), ask=("grep(*.log)",)), tree
    )
    names = ("src/.env", ".env", "private/a", "a.log", "src/a.py")
    assert [name for name in names if judge.hides("grep", f"{tree}/{name}")] == [".env", "private/a", "a.log"]
    assert [name for name in names if judge.hides("glob", f"{tree}/{name}")] == [".env", "private/a"]


GRANTING = (
    ".git/hooks/pre-commit", ".git/config", ".git", "src/.git/config", ".aerix/settings.toml", ".aerix/settings.local.toml",
    ".claude/settings.json", "src/.claude/settings.local.json", "~/.config/aerix/settings.toml", ".GIT/config",
)  # fmt: skip


@pytest.mark.rule("permissions.granting")
@pytest.mark.parametrize("tool", ["write", "edit"])
def test_what_grants_permissions_needs_a_rule_that_names_it(judge: Asks, tool: str) -> None:
    for path in GRANTING:
        assert judge(tool, path, allow=WIDE).verdict == "ask", path
        found = judge(tool, path)
        assert found.why == "may change what is permitted or run later and needs an allow rule", path
        assert judge(tool, path, allow=found.rules).verdict == "run", path
        assert judge("read", path).verdict == "run", path


@pytest.mark.rule("permissions.granting")
@pytest.mark.parametrize(
    "path", [".gitignore", ".github/workflows/x.yml", ".aerix/notes.md", "git/x", ".claude/skills/x"]
)
def test_what_only_stands_beside_it_does_not(judge: Asks, path: str) -> None:
    assert judge("write", path).verdict == "run"


# --- the rule that would allow a call -----------------------------------------------------------------------------


@pytest.mark.rule("permissions.nobody-there")
@pytest.mark.parametrize(
    ("tool", "what", "rules"),
    [
        ("bash", "git push origin", ("bash(git push *)",)),
        ("bash", "git log && npm test -- -v; ls -l", ("bash(git log *)", "bash(npm test *)", "bash(ls -l)")),
        ("bash", "rm *.pyc", ("bash(rm \\*.pyc)",)),
        ("bash", "echo $(id)", ("bash",)),
        ("edit", "src/a.py", ("edit(src/**)",)),
        ("write", "a.py", ("edit(./a.py)",)),
        ("write", "src/[a]/x", ("edit(src/[[]a]/**)",)),
    ],
)
def test_the_rule_that_is_named_allows_the_call(
    judge: Asks, tool: str, what: str, rules: tuple[str, ...]
) -> None:
    assert judge(tool, what, mode="ask").rules == rules
    assert judge(tool, what, mode="ask", allow=rules).verdict == "run"


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=8)


@given(st.lists(NAMES.filter(lambda name: name not in (".", "..")), min_size=1, max_size=4))
@example(["~", "a"])
def test_the_pattern_of_a_path_fits_that_path(names: list[str]) -> None:
    places = Places("/tree", "/home/me")
    for base in ("/tree", "/home/me", "/opt"):
        path = "/".join([base, *names])
        pattern = pattern_of(path, places)
        if not names[-1].endswith((" ", "\n")) and "(" not in pattern:
            assert read_pattern(pattern, places).matches(path), pattern
            assert not read_pattern(pattern, places).matches(path + "x"), pattern


@pytest.mark.parametrize("pattern", ["**/a" * 30, "*a" * 100, "[" * 200, "**/" * 100, "a*/**/" * 40])
def test_a_pattern_that_is_up_to_no_good_costs_no_time(pattern: str) -> None:
    read_pattern(pattern, Places("/t", "/h")).matches("/t" + "/a" * 2000)
    read_pattern(pattern, Places("/t", "/h")).matches("/t/" + "a" * 250)
    Judge(Permissions(deny=(f"bash({'*a' * 500})",)), Path("/")).judge(
        "bash", {"command": "a" * 20_000 + "b"}
    )


def test_a_path_that_no_system_call_takes_is_left_to_its_tool(judge: Asks) -> None:
    assert judge("read", "a\0b").verdict == "run"
    assert judge("read", "a" * 5000).verdict == "run"
    assert judge("write", os.fsdecode(b"\xff")).verdict == "run"


@pytest.mark.rule("permissions.secrets")
def test_the_page_has_the_list_of_secrets() -> None:
    page = (Path(__file__).parents[2] / "docs/permissions.md").read_text("utf-8")
    listed = page.split("<!-- secrets -->")[1].split("<!-- end -->")[0]
    secrets, others = listed.split("; but not ")
    names = [tuple(part.split("`")[1::2]) for part in (secrets, others)]
    assert names == [SECRETS, NO_SECRETS]
