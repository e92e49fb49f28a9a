import os
import subprocess
from pathlib import Path

import pytest

from aerix.session.project import project_key, repository_root


def clone(folder: Path, url: str | None) -> Path:
    folder.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    if url is not None:
        subprocess.run(["git", "remote", "add", "origin", url], cwd=folder, check=True)
    return folder


@pytest.mark.rule("session.project-key")
def test_every_way_to_write_an_origin_is_one_project(tmp_path: Path) -> None:
    urls = [
        "https://github.com/Org/Repo.git",
        "https://github.com/Org/Repo",
        "https://user:secret@github.com:443/Org/Repo/",
        "git@github.com:Org/Repo.git",
        "ssh://git@GitHub.com:22/Org/Repo.git",
        "git+ssh://git@github.com/Org/Repo.git",
        "github.com:Org/Repo",
    ]
    keys = {project_key(clone(tmp_path / str(n), url)) for n, url in enumerate(urls)}
    assert len(keys) == 1
    (key,) = keys
    assert key.startswith("github.com-Org-Repo-")
    assert "secret" not in key


@pytest.mark.rule("session.project-key")
def test_other_origins_are_other_projects(tmp_path: Path) -> None:
    urls = [
        "https://github.com/Org/Repo",
        "https://github.com/Org/Other",
        "https://example.org/Org/Repo",
        "https://github.com:8443/Org/Repo",
        "git@github.com:~/Repo",
        "../relative",
        "/srv/absolute.git",
        "file:///srv/other.git",
        None,
    ]
    assert len({project_key(clone(tmp_path / str(n), url)) for n, url in enumerate(urls)}) == len(urls)


@pytest.mark.rule("session.project-key")
def test_a_local_origin_is_its_real_path(tmp_path: Path) -> None:
    keys = {
        project_key(clone(tmp_path / "a", "../bare.git")),
        project_key(clone(tmp_path / "b", f"{tmp_path}/bare.git/")),
        project_key(clone(tmp_path / "c", f"file://{tmp_path}/bare")),
    }
    assert len(keys) == 1


@pytest.mark.rule("session.project-key")
def test_every_folder_of_a_repository_is_its_project(tmp_path: Path) -> None:
    for url in (None, "https://example.org/x"):
        repo = clone(tmp_path / f"repo{url is None}", url)
        (repo / "a/b").mkdir(parents=True)
        assert project_key(repo / "a/b") == project_key(repo)
        assert repository_root(repo / "a/b") == repo


@pytest.mark.rule("session.project-key")
def test_without_an_origin_it_is_the_real_path(tmp_path: Path) -> None:
    (tmp_path / "real dir").mkdir()
    (tmp_path / "link").symlink_to("real dir")
    assert project_key(tmp_path / "link") == project_key(tmp_path / "real dir")
    assert "real-dir-" in project_key(tmp_path / "link")
    assert project_key(tmp_path) != project_key(tmp_path / "link")
    assert repository_root(tmp_path) is None
    assert project_key(Path("/")).startswith("root-")


@pytest.mark.rule("session.project-key")
def test_a_worktree_is_the_project_of_its_repository(git_repo: Path) -> None:
    subprocess.run(["git", "remote", "add", "origin", "https://example.org/x"], cwd=git_repo, check=True)
    other = git_repo.parent / "other"
    subprocess.run(["git", "worktree", "add", "--quiet", str(other)], cwd=git_repo, check=True)
    assert project_key(other) == project_key(git_repo)


def test_a_key_is_a_safe_folder_name(tmp_path: Path) -> None:
    long = clone(tmp_path / "a", f"https://example.org/{'x/' * 100}ü ../end")
    key = project_key(long)
    assert len(key) <= 60
    assert not set(key) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._")
    odd = tmp_path / os.fsdecode(b"\xff")
    odd.mkdir()
    assert project_key(odd) != project_key(tmp_path)


@pytest.mark.parametrize(
    ("config", "slug"),
    [
        ('[remote "origin"]\n  url = "https://e.org/a;b" ; a comment\n', "e.org-a-b-"),
        ('[REMOTE "origin"] URL=https://e.org/x # a comment\n', "e.org-x-"),
        (
            '[remote "other"]\nurl = https://e.org/no\n[remote "origin"]\nurl = https://e.org/\\\nyes\n',
            "e.org-yes-",
        ),
        ('[remote "origin"]\nurl = https://e.org/one\nurl = https://e.org/two\n', "e.org-one-"),
        ('[remote "origin"]\npushurl = https://e.org/push\n', "repo-"),
        ("nonsense", "repo-"),
    ],
)
def test_gits_settings_are_read_as_git_reads_them(git_repo: Path, config: str, slug: str) -> None:
    (git_repo / ".git/config").write_text(config)
    assert slug in project_key(git_repo)


def test_settings_that_cannot_be_read_are_passed_over(git_repo: Path) -> None:
    (git_repo / ".git/config").unlink()
    os.mkfifo(git_repo / ".git/config")
    assert "repo-" in project_key(git_repo)
