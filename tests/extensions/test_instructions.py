"""Instruction files: which are read, in which order, each once, and what never harms."""

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerix.extensions.instructions import Instructions, Part, fit, read_instructions
from aerix.extensions.markdown import imports, without_comments


@pytest.fixture
def repo(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "repo/sub").mkdir(parents=True)
    return tmp_path / "repo"


def read(cwd, managed="absent"):
    home = cwd if cwd.name == "home" else next(p for p in cwd.parents if (p / "home").is_dir()) / "home"
    return read_instructions(cwd, home=home, managed=cwd / managed)


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def texts(found):
    return [part.text for part in found.parts]


# --- which files, in which order ----------------------------------------------------------------------------------


@pytest.mark.rule("instructions.order")
def test_files_are_read_from_the_broadest_to_the_nearest(repo):
    write(repo / "managed.md", "1")
    write(repo.parent / "home/.claude/CLAUDE.md", "2")
    for number, name in enumerate(["CLAUDE.md", ".claude/CLAUDE.md", "CLAUDE.local.md"], 3):
        write(repo / name, f"{number}")
    write(repo / "sub/CLAUDE.md", "6")
    found = read_instructions(repo / "sub", home=repo.parent / "home", managed=repo / "managed.md")
    assert texts(found) == ["1", "2", "3", "4", "5", "6"]
    assert found.files[-1] == repo / "sub/CLAUDE.md"
    assert found.notes == ()


def test_without_files_there_is_nothing(repo):
    found = read(repo)
    assert (found, found.text, fit(found, 8192)) == (Instructions(), "", "")


def test_each_text_is_headed_by_its_files_name(repo):
    write(repo / "CLAUDE.md", "Use tabs.\n")
    write(repo / "sub/CLAUDE.md", "Use spaces.\n")
    assert read(repo / "sub").text == (
        f"Instructions from {repo}/CLAUDE.md:\n\nUse tabs.\n\nInstructions from CLAUDE.md:\n\nUse spaces."
    )


@pytest.mark.rule("instructions.agents-md")
def test_agents_md_is_read_where_no_folder_on_the_path_has_a_claude_md(repo):
    write(repo / "AGENTS.md", "a")
    write(repo / ".claude/AGENTS.md", "b")
    write(repo / "sub/AGENTS.md", "c")
    write(repo.parent / "home/.claude/CLAUDE.md", "the user's does not count")
    assert texts(read(repo / "sub")) == ["the user's does not count", "a", "b", "c"]
    write(repo / "CLAUDE.local.md", "d")
    assert texts(read(repo / "sub")) == ["the user's does not count", "d"]


@pytest.mark.rule("instructions.agents-md")
def test_the_users_file_does_not_count_below_the_home_folder_either(repo):
    home = repo.parent / "home"
    write(home / ".claude/CLAUDE.md", "user")
    write(home / "AGENTS.md", "agents")
    assert texts(read(home)) == ["user", "agents"]


@pytest.mark.rule("instructions.once")
@pytest.mark.parametrize("imported", [True, False])
def test_a_pair_that_is_a_link_or_one_import_gives_its_text_once(repo, imported):
    write(repo / "AGENTS.md", "Use tabs.")
    if imported:
        write(repo / "CLAUDE.md", "@AGENTS.md\n")
    else:
        (repo / "CLAUDE.md").symlink_to("AGENTS.md")
    assert texts(read(repo)) == ["Use tabs."]


@pytest.mark.rule("instructions.once")
def test_two_names_of_one_file_give_its_text_once(repo):
    write(repo / "CLAUDE.md", "Use tabs.")
    os.link(repo / "CLAUDE.md", repo / "CLAUDE.local.md")
    assert texts(read(repo)) == ["Use tabs."]


# --- imports ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("instructions.imports")
def test_an_import_is_added_after_the_file_that_imports_it(repo):
    write(repo / "CLAUDE.md", "See @docs/style.md, and (not) me@example.org.")
    write(repo / "docs/style.md", "Style: @more.md")
    write(repo / "docs/more.md", "More.")
    assert texts(read(repo)) == ["See @docs/style.md, and (not) me@example.org.", "Style: @more.md", "More."]


@pytest.mark.rule("instructions.import-hops")
def test_imports_are_followed_for_four_hops(repo):
    write(repo / "CLAUDE.md", "0 @1.md")
    for hop in range(1, 7):
        write(repo / f"{hop}.md", f"{hop} @{hop + 1}.md")
    found = read(repo)
    assert texts(found) == [f"{hop} @{hop + 1}.md" for hop in range(5)]
    assert found.notes == ("5.md is not read: it is more than 4 imports away.",)


@pytest.mark.rule("instructions.import-cycle")
def test_files_that_import_each_other_are_read_once(repo):
    write(repo / "CLAUDE.md", "a @b.md @CLAUDE.md")
    write(repo / "b.md", "b @CLAUDE.md @b.md")
    assert texts(read(repo)) == ["a @b.md @CLAUDE.md", "b @CLAUDE.md @b.md"]


@pytest.mark.rule("instructions.import-approval")
@pytest.mark.parametrize("name", ["../secret.md", "{root}/secret.md", "~/secret.md", "link.md"])
def test_an_import_that_leaves_the_working_directory_is_not_followed(repo, name):
    for folder in (repo.parent, repo.parent / "home"):
        write(folder / "secret.md", "a secret")
    (repo / "link.md").symlink_to("../secret.md")
    write(repo / "CLAUDE.md", "Read @" + name.format(root=repo.parent))
    found = read(repo)
    assert "a secret" not in found.text
    assert len(found.notes) == 1
    assert (
        found.notes[0].endswith("secret.md is not read: it leads out of the working directory.")
        or name == "link.md"
    )


@pytest.mark.rule("instructions.import-approval")
def test_a_project_file_that_is_a_link_out_is_not_read(repo):
    write(repo.parent / "secret.md", "a secret")
    (repo / "CLAUDE.md").symlink_to("../secret.md")
    found = read(repo)
    assert (found.text, found.notes) == (
        "",
        ("CLAUDE.md is not read: it leads out of the working directory.",),
    )


@pytest.mark.rule("instructions.import-approval")
def test_a_file_above_may_import_from_its_own_folder(repo):
    write(repo / "CLAUDE.md", "@AGENTS.md")
    write(repo / "AGENTS.md", "Use tabs.")
    assert texts(read(repo / "sub")) == ["Use tabs."]


def test_the_users_own_file_may_import_anything(repo):
    write(repo.parent / "home/.claude/CLAUDE.md", "@~/mine.md")
    write(repo.parent / "home/mine.md", "mine")
    assert texts(read(repo)) == ["mine"]


@pytest.mark.rule("instructions.imports")
def test_an_import_that_is_not_there_is_noted_when_it_looks_like_a_file(repo):
    (repo / "docs").mkdir()
    write(repo / "CLAUDE.md", "@docs/absent.md @someone @angular/core @docs")
    found = read(repo)
    assert found.notes == ("docs/absent.md is not read: CLAUDE.md imports it, but it is not there.",)


@pytest.mark.rule("instructions.imports")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("@a.md", ["a.md"]),
        ("x @a.md. (@no.md) @~/b.md, @/c/d.md!", ["a.md", "~/b.md", "/c/d.md"]),
        ("a\\ b @a\\ b.md", ["a b.md"]),
        ("me@example.org @", []),
        ("`@a.md` @b.md ``x ` @c.md`` @d.md", ["b.md", "d.md"]),
        ("an open ` tick @a.md", ["a.md"]),
        ("```\n@a.md\n```\n@b.md", ["b.md"]),
        ("~~~ text\n@a.md\n```\n@b.md\n~~~~\n@c.md", ["c.md"]),
        ("```` \n```\n@a.md\n````\n@b.md", ["b.md"]),
        ("``` `x` @a.md", ["a.md"]),
        ("```\n@never.md", []),
    ],
)
def test_imports_are_found_outside_code(text, found):
    assert imports(text) == found


@pytest.mark.rule("instructions.comments")
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a\n<!-- b -->\nc\n", "a\nc\n"),
        ("a\n  <!-- b\n\n@x.md\n-->\nc", "a\nc"),
        ("<!-- a --> b\nc", "b\nc"),
        ("a <!-- inline --> b", "a <!-- inline --> b"),
        ("```\n<!-- a -->\n```\n", "```\n<!-- a -->\n```\n"),
        ("<!--\n```\n-->\n<!-- b -->\nc", "c"),
        ("    <!-- code -->", "    <!-- code -->"),
        ("<!-- never ends\na", "<!-- never ends\na"),
        ("-->\n<!-- never ends\na", "-->\n<!-- never ends\na"),
    ],
)
def test_block_comments_are_dropped(text, kept):
    assert without_comments(text) == kept


# --- weird files --------------------------------------------------------------------------------------------------


@pytest.mark.rule("instructions.weird-files")
def test_what_is_no_readable_text_is_noted_and_skipped(repo):
    os.mkfifo(repo / "CLAUDE.md")
    (repo / "CLAUDE.local.md").mkdir()
    write(repo / ".claude/CLAUDE.md", b"\x7fELF\0\1")
    write(repo / "sub/CLAUDE.md", "\ufeffok \ufffd".encode() + b"\xff")
    found = read(repo / "sub")
    assert texts(found) == ["ok \ufffd\ufffd"]
    assert [note.removeprefix(f"{repo}/") for note in found.notes] == [
        "CLAUDE.md is not read: it is not a regular file.",
        ".claude/CLAUDE.md is not read: it is not text.",
        "CLAUDE.local.md is not read: it is not a regular file.",
    ]


@pytest.mark.rule("instructions.weird-files")
def test_links_in_a_circle_and_names_that_no_file_can_have_are_nothing(repo):
    (repo / "CLAUDE.md").symlink_to("CLAUDE.md")
    write(repo / "AGENTS.md", "a @x\0y @" + "n" * 5000 + " @" + "d/" * 3000)
    assert texts(read(repo)) == []
    write(repo / "AGENTS.md", "a @" + "n" * 5000 + " @" + "d/" * 3000)
    assert len(texts(read(repo))) == 1


@pytest.mark.rule("instructions.file-size")
def test_a_file_over_four_mebibytes_is_skipped(repo):
    write(repo / "CLAUDE.md", "x" * (4 * 1024 * 1024 + 1))
    write(repo / "CLAUDE.local.md", "x" * (4 * 1024 * 1024))
    found = read(repo)
    assert found.files == (repo / "CLAUDE.local.md",)
    assert found.notes == ("CLAUDE.md is not read: it is larger than 4194304 bytes.",)


@pytest.mark.bound("instructions.file")
@pytest.mark.bound("instructions.hops")
@pytest.mark.rule("instructions.bounded")
def test_a_file_that_is_too_large_and_an_import_that_is_too_far_are_not_read(repo, limit):
    write(repo / "CLAUDE.md", "0 @1.md")
    write(repo / "1.md", "1 @2.md")
    write(repo / "2.md", "2")
    write(repo / "CLAUDE.local.md", "x" * 11)
    limit("instructions.hops", 1)
    limit("instructions.file", 10)
    found = read(repo)
    assert texts(found) == ["0 @1.md", "1 @2.md"]
    assert found.notes == (
        "2.md is not read: it is more than 1 imports away.",
        "CLAUDE.local.md is not read: it is larger than 10 bytes.",
    )


@pytest.mark.bound("instructions.files")
@pytest.mark.bound("instructions.total")
@pytest.mark.bound("instructions.imports")
@pytest.mark.rule("instructions.bounded")
@pytest.mark.parametrize(("bound", "value"), [("FILES", "2"), ("TOTAL", "4"), ("IMPORTS", "1")])
def test_files_bytes_and_imports_are_bounded(repo, monkeypatch, bound, value):
    monkeypatch.setenv(f"AERIX_BOUND_INSTRUCTIONS_{bound}", value)
    write(repo / "CLAUDE.md", "@1 @2 @3")
    for name in "123":
        write(repo / name, name)
    found = read(repo)
    assert len(found.parts) < 4
    assert found.notes or bound == "IMPORTS"


@pytest.mark.rule("instructions.bounded")
def test_many_notes_are_counted(repo, monkeypatch):
    monkeypatch.setenv("AERIX_BOUND_START_NOTES", "2")
    write(repo / "CLAUDE.md", "@1.md @2.md @3.md @4.md")
    assert read(repo).notes[2:] == ("2 more instruction files are not read.",)


def test_a_folder_whose_name_is_not_utf8_can_be_worked_in(repo):
    folder = repo / os.fsdecode(b"caf\xe9")
    write(folder / "CLAUDE.md", "Use tabs.")
    (folder / "sub").mkdir()
    found = read(folder / "sub")
    assert "caf\ufffd/CLAUDE.md" in fit(found, 8192)


@pytest.mark.rule("instructions.bounded")
@pytest.mark.parametrize("text", ["`" * 500_000, "` `` ``` " * 100_000, "<!--\n" * 100_000, "```\n~~~\n" * 100_000,
                                  " @a" * 300_000])  # fmt: skip
def test_a_hostile_text_takes_no_long_time(repo, text):
    write(repo / "CLAUDE.md", text)
    start = time.process_time()
    read(repo)
    assert time.process_time() - start < 5


@given(st.text(st.sampled_from("`~@<!->\\/. \na")))
def test_no_markdown_harms(text):
    imports(text)
    assert len(without_comments(text)) <= len(text)


# --- the budget ---------------------------------------------------------------------------------------------------


def three_files():
    body = "\n".join(f"line {n} é" for n in range(100))
    return Instructions(tuple(Part(f"/r/{name}", name, body) for name in ("a.md", "sub/b.md", "c.md")))


@pytest.mark.rule("instructions.quarter")
def test_what_fits_is_left_as_it_is():
    found = three_files()
    assert fit(found, 8192) == found.text


@pytest.mark.rule("instructions.quarter")
@pytest.mark.parametrize("window", [256, 512, 1024, 2048, 4096])
def test_instructions_take_at_most_a_quarter_of_the_window(window):
    found = three_files()
    text = fit(found, window)
    assert len(text.encode()) <= window // 4 * 3
    head, pointer = text.rsplit("\n", 1)
    assert found.text.startswith(head + "\n")
    left = len(found.text.encode()) - len(head.encode()) - 1
    assert pointer.startswith(f"[truncated: {left} more bytes of instructions; read them with read(path=")


@pytest.mark.rule("instructions.quarter")
@pytest.mark.parametrize(
    ("window", "names"), [(512, ["a.md", "sub/b.md", "c.md"]), (3072, ["sub/b.md", "c.md"])]
)
def test_the_pointer_names_the_files_that_are_not_there_whole(window, names):
    pointer = fit(three_files(), window).rsplit("; ", 1)[1]
    assert pointer == "read them with " + ", ".join(f'read(path="{name}")' for name in names) + "]"


@pytest.mark.rule("instructions.quarter")
def test_one_long_line_is_left_to_the_pointer():
    found = Instructions(tuple(Part(f"/{n}.md", f"{n}.md", "x" * 9000) for n in range(5)))
    assert fit(found, 400).endswith(
        'read them with read(path="0.md"), read(path="1.md"), read(path="2.md") and 2 more files]'
    )


@given(st.text(), st.integers(0, 100_000))
def test_no_text_and_no_window_harms(text, window):
    found = Instructions((Part("/a", "a", text), Part("/b", "b", text)))
    assert fit(found, window)
