"""The lock, and the scripts that make the environment from it.

Setting up for real takes minutes; here scripts/environment.sh runs as it is, and only the Python it calls is a stand-in
that writes down what pip was asked for.
"""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
LOCK = (ROOT / "requirements.lock").read_text("utf-8")
PINS = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", LOCK, re.MULTILINE))

PYTHON = """#!/usr/bin/env bash
packages=$(dirname "$0")/../lib/python3.11/site-packages
engine=$packages/llama_cpp_python-VERSION.dist-info
case "$*" in
"-m venv "*) mkdir -p "$3/bin" "$3/lib/python3.11/site-packages" && cp "$0" "$3/bin/python" ;;
*sys.version\\)) echo "3.11 (stand-in)" ;;
"-m pip "*)
    echo "${CMAKE_ARGS-no flags}: ${*:3}" >>"$PIP_LOG"
    if [[ -n ${FAIL_AT-} && $* == *"$FAIL_AT"* ]]; then exit 1; fi
    if [[ $* == *uninstall* ]]; then rm -rf "$engine"; fi
    if [[ $* == *" -e "* ]]; then printf '%s\\n' "$AERIX" >"$(dirname "$0")/aerix" && chmod +x "$(dirname "$0")/aerix"; fi
    if [[ $* == *aerix-engine.lock* || $* == *.whl ]]; then mkdir -p "$engine" && touch "$engine/RECORD"; fi
    ;;
esac
"""

AERIX = """#!/usr/bin/env bash
echo "aerix in $PWD: $*" >>"$PIP_LOG"
if [[ $1 == -p ]]; then echo "the answer" && exit 2; fi
"""


class Clone:
    """A copy of what the scripts read, and what pip was asked for there."""

    def __init__(self, folder: Path) -> None:
        self.root, self.log = folder / "clone", folder / "pip.log"
        (self.root / "scripts").mkdir(parents=True)
        for name in (
            "scripts/environment.sh",
            "scripts/quickstart",
            "requirements.lock",
            "setup.cfg",
            "pyproject.toml",
        ):
            shutil.copy(ROOT / name, self.root / name)
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.bin / "python3").write_text(PYTHON.replace("VERSION", PINS["llama-cpp-python"]))
        (self.bin / "python3").chmod(0o755)

    def bash(
        self, code: str, path: str = "/usr/bin:/bin", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/bash", "-c", f"set -euo pipefail; source scripts/environment.sh; {code}"],
            cwd=self.root,
            env={"PATH": f"{self.bin}:{path}", "PIP_LOG": str(self.log), "AERIX": AERIX} | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    def prepare(self, kind: str = "run", **variables: str) -> list[str]:
        """Set up; returns what pip was asked for."""
        self.log.write_text("")
        result = self.bash(f"prepare {kind}", **variables)
        assert (result.returncode != 0) == ("FAIL_AT" in variables), result.stderr
        return self.log.read_text().splitlines()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def builds(asked: list[str]) -> list[str]:
    return [line for line in asked if "aerix-engine.lock" in line or ".whl" in line]


# --- the lock -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("setup.lock-hashed")
def test_every_pin_has_hashes_and_no_host_is_named():
    blocks = re.findall(r"^[a-z0-9-]+==[^\n]*(?:\n +--hash=sha256:[0-9a-f]{64}[^\n]*)+", LOCK, re.MULTILINE)
    assert len(blocks) == len(PINS) == len(re.findall(r"^[^#\s]", LOCK, re.MULTILINE))
    assert "://" not in LOCK
    assert "index" not in LOCK


@pytest.mark.rule("setup.lock-complete")
@pytest.mark.parametrize("section", ["options/install_requires", "options.extras_require/test"])
def test_what_the_metadata_asks_for_is_pinned_at_a_version_it_allows(section):
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(ROOT / "setup.cfg")
    part, key = section.split("/")
    wanted = [Requirement(line) for line in settings[part][key].split("\n") if line]
    assert wanted
    assert [str(need) for need in wanted if not need.specifier.contains(PINS[need.name])] == []


@pytest.mark.rule("setup.lock-hashed")
def test_pip_and_the_build_tools_are_pinned_too():
    assert {"pip", "setuptools", "scikit-build-core", "cmake", "ninja"} <= set(PINS)


def test_a_wheel_has_every_package_under_the_one_name_aerix():
    from setuptools import find_packages

    folders = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "aerix").glob("**/__init__.py")}
    folders |= {f"aerix/{floor}" for floor in ("actors", "hooks", "pool")}
    assert set(find_packages(str(ROOT), include=["aerix", "aerix.*"])) == {
        name.replace("/", ".") for name in folders
    }


@pytest.mark.rule("rooms.types-strict")
def test_the_package_says_that_it_is_typed():
    assert (ROOT / "aerix/py.typed").read_text() == ""


# --- the environment ----------------------------------------------------------------------------------------------


def test_pip_comes_first_then_the_build_tools_then_the_engine_then_the_rest_by_hash_then_aerix(clone):
    asked = clone.prepare("test")
    files = [match[1] for line in asked if (match := re.search(r"aerix-([a-z]+)\.lock", line))]
    assert files == ["pip", "build", "engine", "run", "test"]
    assert all("--require-hashes" in line for line in asked if ".lock" in line)
    assert asked[-1].endswith(f"--no-deps --no-build-isolation -e {clone.root}")


@pytest.mark.rule("setup.again-is-quick")
def test_a_second_set_up_asks_pip_for_nothing(clone):
    clone.prepare("test")
    assert clone.prepare("test") == []
    assert clone.prepare("run") == []


@pytest.mark.rule("setup.again-is-quick")
def test_a_changed_lock_is_installed_and_the_engine_stays(clone):
    clone.prepare()
    (clone.root / "requirements.lock").write_text(LOCK + "# changed\n")
    asked = clone.prepare()
    assert asked
    assert builds(asked) == []


@pytest.mark.rule("setup.cut-off-recovers")
@pytest.mark.parametrize(
    "step", ["aerix-pip.lock", "aerix-build.lock", "aerix-engine.lock", "aerix-run.lock", "-e "]
)
def test_a_set_up_that_was_cut_off_starts_from_a_clean_environment(clone, step):
    clone.prepare(FAIL_AT=step)
    half = clone.root / ".venv/half-written"
    half.touch()
    assert clone.prepare()[-1].endswith(f"-e {clone.root}")
    assert not half.exists()
    assert clone.prepare() == []


@pytest.mark.rule("setup.cut-off-recovers")
def test_flags_of_a_build_that_was_cut_off_are_remembered(clone):
    clone.prepare(CMAKE_ARGS="-DGGML_CUDA=on", FAIL_AT="aerix-engine.lock")
    assert builds(clone.prepare())[0].startswith("-DGGML_CUDA=on: ")


@pytest.mark.rule("setup.flags-recorded")
def test_a_build_with_flags_avoids_the_cache_and_a_plain_one_uses_it(clone):
    (plain,) = builds(clone.prepare())
    assert plain.startswith("no flags: ")
    assert "--no-cache-dir" not in plain
    (flagged,) = builds(clone.prepare(CMAKE_ARGS="-DGGML_CUDA=on"))
    assert flagged.startswith("-DGGML_CUDA=on: ")
    assert "--no-cache-dir" in flagged


@pytest.mark.rule("setup.flags-recorded")
def test_the_engine_is_built_again_when_its_flags_change_and_only_then(clone):
    clone.prepare(CMAKE_ARGS="-DGGML_CUDA=on")
    assert clone.prepare(CMAKE_ARGS="-DGGML_CUDA=on") == []
    assert clone.prepare() == []
    assert len(builds(clone.prepare(CMAKE_ARGS=""))) == 1
    assert clone.prepare() == []


def test_a_prebuilt_wheel_is_taken_and_kept(clone):
    wheel = f"/some/llama_cpp_python-{PINS['llama-cpp-python']}-py3-none-linux_x86_64.whl"
    assert [f"no flags: install --quiet --no-deps --no-cache-dir {wheel}"] == builds(
        clone.prepare(LLAMA_WHEEL=wheel)
    )
    assert clone.prepare() == []


def test_a_prebuilt_wheel_of_another_version_is_refused(clone):
    result = clone.bash("prepare run", LLAMA_WHEEL="/some/llama_cpp_python-0.1.0-py3-none-any.whl")
    assert result.returncode == 3
    assert "and LLAMA_WHEEL names llama_cpp_python-0.1.0-py3-none-any.whl." in result.stderr


@pytest.mark.rule("setup.progress-shown")
def test_a_build_shows_every_tenth_of_its_way_off_a_terminal(clone):
    steps = "; ".join(f"echo '  [{step}/193] /usr/bin/g++ -O3'" for step in range(1, 194))
    result = clone.bash(f"{{ echo Collecting; {steps}; }} | show_steps log")
    assert [f"  building llama.cpp: {tenth * 10} %" for tenth in range(11)] == result.stderr.splitlines()
    assert len((clone.root / "log").read_text().splitlines()) == 194


@pytest.mark.rule("setup.says-what-lacks")
@pytest.mark.parametrize(
    ("need", "said"),
    [
        ("need_git", "Aerix reads working trees with git, which is missing: install it with "),
        (
            "need_compiler",
            "The engine is built from its sources, and there is no C++ compiler here: install one with ",
        ),
        ("need_python", "Aerix needs Python 3.11 or newer, and here is none: install it with "),
    ],
)
def test_a_missing_program_is_one_sentence_that_says_how_to_install_it(clone, tmp_path, need, said):
    (clone.bin / "python3").unlink()
    (clone.bin / "dirname").symlink_to(shutil.which("dirname"))
    result = clone.bash(need, path=str(tmp_path))
    assert result.returncode == 3
    assert result.stderr.startswith(said)
    assert result.stderr.endswith(".\n")
    assert result.stderr.count("\n") == 1


@pytest.mark.rule("setup.says-what-lacks")
def test_a_python_that_is_too_old_is_named(clone, tmp_path):
    (clone.bin / "python3").write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" || exit 1\n')
    (clone.bin / "dirname").symlink_to(shutil.which("dirname"))
    result = clone.bash("need_python", path=str(tmp_path))
    assert result.stderr.startswith(
        "Aerix needs Python 3.11 or newer, and here is Python 3.9.2: install it with "
    )


@pytest.mark.rule("setup.says-what-lacks")
def test_a_python_that_cannot_make_environments_is_told_how_it_can(clone):
    (clone.bin / "python3").write_text('#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; esac\n')
    result = clone.bash("need_python")
    assert result.returncode == 3
    assert result.stderr.startswith(
        "python3 cannot make environments, because its modules venv and ensurepip are missing"
    )


@pytest.mark.rule("setup.exit-code-is-aerix")
def test_quickstart_runs_the_prompt_where_it_was_called_and_ends_as_aerix_did(clone, tmp_path):
    result = clone.bash(f"cd {tmp_path}; {clone.root}/scripts/quickstart what is this")
    assert result.returncode == 2
    assert result.stdout == "the answer\n"
    pull, run = (line for line in clone.log.read_text().splitlines() if line.startswith("aerix"))
    assert pull == f"aerix in {tmp_path}: models pull smollm2-135m-instruct"
    assert run.startswith(f"aerix in {tmp_path}: -p what is this --seed 1 --max-turns 6 ")


def test_the_scripts_are_sound_bash():
    for script in ("scripts/environment.sh", "scripts/quickstart", "scripts/test", ".ci/run"):
        subprocess.run(["bash", "-n", ROOT / script], check=True)
