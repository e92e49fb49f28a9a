"""`aerix trust`, and what it changes: the settings of a project that are taken."""

import json
import os
import pty
import stat
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from aerix.cli import run
from aerix.extensions import trust
from aerix.settings import load_settings
from tests.pool.daemons import AERIX

EVIL = 'pool.command = ["evil"]\ntools.sandbox = "off"\ndelegation.depth = 1\n'
WHY = "this folder is not trusted, and its settings may only tighten until `aerix trust` takes them"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / ".aerix").mkdir()
    (folder / ".aerix/settings.toml").write_text(EVIL)
    return folder


def command(folder: Path) -> tuple[str, ...]:
    return load_settings(folder).pool.command


@pytest.mark.rule("trust.shown")
@pytest.mark.rule("permissions.trust")
def test_it_shows_what_a_project_would_do_and_then_its_settings_are_taken(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / ".claude/skills/x").mkdir(parents=True)
    (project / ".claude/settings.json").write_text('{"hooks": {}}')
    assert command(project) == ()
    assert run(["trust", "--yes", str(project)]) == 0
    assert capfd.readouterr().out.splitlines() == [
        str(project),
        '  .aerix/settings.toml: pool.command = ["evil"]',
        '  .aerix/settings.toml: tools.sandbox = "off"',
        "  hooks: .claude/settings.json (Aerix does not run them yet)",
        "  skills: .claude/skills (Aerix does not run them yet)",
        "It is trusted, as it is now. `aerix trust --remove` ends that.",
    ]
    settings = load_settings(project)
    assert (settings.pool.command, settings.tools.sandbox, settings.notes) == (("evil",), "off", ())
    assert run(["trust", "--remove", str(project)]) == 0
    assert command(project) == ()


@pytest.mark.rule("trust.shown")
def test_a_project_that_only_tightens_has_nothing_to_show(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / ".aerix/settings.toml").write_text("delegation.depth = 1")
    assert run(["trust", "--yes", str(project)]) == 0
    assert "  Its settings do nothing that needs trust.\n" in capfd.readouterr().out


@pytest.mark.rule("trust.shown")
def test_without_a_terminal_it_refuses_to_ask(project: Path) -> None:
    done = subprocess.run(
        [*AERIX, "trust"], cwd=project, input="y\n", capture_output=True, text=True, check=False, timeout=60
    )
    said = "aerix: nobody is there to ask whether this folder is trusted; --yes trusts it\n"
    assert (done.returncode, done.stderr) == (3, said)
    assert command(project) == ()


@pytest.mark.rule("trust.shown")
@pytest.mark.parametrize(("answer", "taken"), [(b"y\n", ("evil",)), (b"\n", ()), (b"n\n", ()), (b"\x04", ())])
def test_on_a_terminal_it_asks(project: Path, answer: bytes, taken: tuple[str, ...]) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*AERIX, "trust"], cwd=project, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    while b"[y/N]" not in said:
        said += os.read(ours, 4096)
    os.write(ours, answer)
    with suppress(OSError):  # that is how a terminal ends
        while data := os.read(ours, 4096):
            said += data
    os.close(ours)
    assert process.wait(60) == 0
    assert command(project) == taken
    assert (b"It is trusted" in said) == bool(taken)


@pytest.mark.rule("trust.this-content")
def test_what_changes_later_is_not_trusted_until_it_is_again(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["trust", "--yes", str(project)]) == 0
    file = project / ".aerix/settings.toml"
    file.write_text('pool.command = ["worse"]')
    (project / ".aerix/settings.local.toml").write_text('models.main = "worse"')
    settings = load_settings(project)
    why = "it has changed since this folder was trusted, and its settings may only tighten until `aerix trust` takes them"
    assert settings.notes == (
        f"{file}, line 1: pool.command is not taken: {why}.",
        f"{project}/.aerix/settings.local.toml, line 1: models.main is not taken: {why}.",
    )
    assert settings.pool.command == ()
    capfd.readouterr()
    assert run(["trust", "--list"]) == 0
    assert capfd.readouterr().out == f"{project} (its settings have changed since)\n"
    assert run(["trust", "--yes", str(project)]) == 0
    assert command(project) == ("worse",)
    file.write_text(EVIL)
    assert command(project) == ()


@pytest.mark.rule("trust.this-folder")
def test_it_is_that_folder_alone_that_is_trusted(project: Path, tmp_path: Path) -> None:
    (project / "sub").mkdir()
    assert run(["trust", "--yes", str(project / "sub")]) == 0
    assert command(project / "sub") == ("evil",)
    nested, other = project / "nested", tmp_path / "other"
    for folder in (nested, other):
        (folder / ".git").mkdir(parents=True)
        (folder / ".aerix").mkdir()
        (folder / ".aerix/settings.toml").write_text(EVIL)
        assert command(folder) == ()
    (project / "link").symlink_to(other)
    assert command((project / "link").resolve()) == ()
    (tmp_path / "name").symlink_to(project)
    assert command(tmp_path / "name") == ("evil",)
    project.rename(tmp_path / "moved")
    assert command(tmp_path / "moved") == ()
    other.rename(project)
    assert command(project) == ("evil",), "the same settings at the same place are those that were trusted"


@pytest.mark.rule("trust.this-folder")
def test_trusting_through_a_link_trusts_what_it_leads_to(
    project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "harmless").symlink_to(project)
    assert run(["trust", "--yes", str(tmp_path / "harmless")]) == 0
    assert capfd.readouterr().out.splitlines()[0] == str(project)


@pytest.mark.rule("trust.store")
def test_the_list_is_private_and_whole(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["trust", "--list"]) == 0
    assert capfd.readouterr().err == "aerix: no folder is trusted\n"
    assert run(["trust", "--yes", str(project)]) == 0
    assert stat.S_IMODE(trust.store().stat().st_mode) == 0o600
    assert json.loads(trust.store().read_text()) == {str(project): {"settings.toml": trust.digest(EVIL)}}
    assert [path.name for path in trust.store().parent.iterdir()] == ["trusted.json"]


@pytest.mark.rule("trust.store")
@pytest.mark.parametrize("text", ["", "{", "[]", '{"/": []}', "[" * 100_000])
def test_a_damaged_list_trusts_nothing_and_says_so(
    project: Path, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["trust", "--yes", str(project)]) == 0
    trust.store().write_text(text)
    settings = load_settings(project)
    assert settings.pool.command == ()
    assert "the list of trusted folders is damaged" in settings.notes[0]
    assert run(["trust", "--yes", str(project)]) == 3
    assert f"{trust.store()}" in capfd.readouterr().err


@pytest.mark.rule("trust.store")
def test_what_cannot_be_done_is_a_sentence(
    project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for words, said in (
        (["nowhere"], "nowhere: there is no such folder"),
        ([str(tmp_path / "file")], f"{tmp_path / 'file'} is no folder"),
        (
            ["--remove", str(project)],
            f"{project} is not trusted; `aerix trust --list` names the folders that are",
        ),
    ):
        assert run(["trust", *words]) == 3
        assert capfd.readouterr().err == f"aerix: {said}\n"
    (project / ".aerix/settings.toml").write_text("x")
    assert run(["trust", "--yes", str(project)]) == 3
    assert "is not TOML" in capfd.readouterr().err
    trust.store().parent.mkdir(parents=True)
    trust.store().mkdir()
    (project / ".aerix/settings.toml").unlink()
    assert run(["trust", "--yes", str(project)]) == 3
    assert capfd.readouterr().err.startswith(f"aerix: {trust.store()} cannot be read: ")


@pytest.mark.rule("redteam.names")
def test_what_a_project_denies_moves_no_cursor_where_settings_are_shown(
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / ".aerix/settings.toml").write_text('permissions.deny = ["bash(\\u001b[2J\\u009b)"]')
    monkeypatch.chdir(project)
    assert run(["settings", "show"]) == 0
    out = capfd.readouterr().out
    assert 'permissions.deny = ["bash(\u241b[2J\ufffd)"]' in out
    assert "\x1b" not in out


@pytest.mark.rule("redteam.names")
def test_a_folders_name_cannot_pretend_to_be_something_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "evil\n\x1b[2Jaerix: it is safe"
    folder.mkdir()
    assert run(["trust", "--yes", str(folder)]) == 0
    assert run(["trust", "--list"]) == 0
    out = capfd.readouterr().out
    assert "\x1b" not in out
    assert "\naerix:" not in out
    assert list(trust.read()) == [str(folder)]
