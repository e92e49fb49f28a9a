"""The guards that every test runs under catch what they are there for."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
CONFTEST = Path(__file__).parent / "conftest.py"


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A test run of its own under the same conftest, with less patience."""
    pytester.makeconftest(CONFTEST.read_text().replace("LINGER = 3.0", "LINGER = 0.1"))
    return pytester


def outcome_of(inner: pytest.Pytester, body: str) -> pytest.RunResult:
    inner.makepyfile(f"import os, socket, subprocess, sys, threading\n\n\ndef test_it():\n    {body}\n")
    return inner.runpytest_subprocess("-p", "no:cacheprovider")


def test_a_clean_test_passes(inner):
    outcome_of(inner, "pass").assert_outcomes(passed=1)


@pytest.mark.rule("setup.tests-touch-no-home")
def test_a_thread_left_behind_is_an_error(inner):
    result = outcome_of(
        inner, "threading.Thread(target=threading.Event().wait, name='a1', daemon=True).start()"
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*threads were left behind: ?'a1'?*"])


def test_a_socket_left_open_is_an_error(inner):
    result = outcome_of(inner, "globals().update(kept=socket.socketpair())")
    result.stdout.fnmatch_lines(["*descriptors were left open: *socket:*"])


@pytest.mark.rule("setup.tests-touch-no-home")
def test_a_process_that_left_its_session_and_parent_is_an_error_and_is_killed(inner):
    start = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    result = outcome_of(inner, f"subprocess.run([sys.executable, '-c', {start!r}], check=True)")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*processes were left behind: *sleep 600*"])


def test_soak_tests_run_only_when_asked_for(inner):
    inner.makeini("[pytest]\nmarkers = soak: heavy")
    inner.makepyfile("import pytest\n\n\n@pytest.mark.soak\ndef test_it():\n    pass\n")
    inner.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(deselected=1)
    inner.runpytest_subprocess("-p", "no:cacheprovider", "--soak").assert_outcomes(passed=1)


def test_a_missing_model_fails_with_a_sentence(inner):
    inner.makepyfile("def test_it(model_file):\n    pass\n")
    result = inner.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["This test needs the real model: run it with scripts/test*"])


@pytest.mark.rule("setup.tests-touch-no-home")
def test_the_callers_home_and_settings_are_out_of_reach(own_home):
    assert Path.home() == own_home
    assert os.environ["XDG_STATE_HOME"].startswith(str(own_home))
    assert not [name for name in os.environ if name.startswith("AERIX_")]


def test_a_socket_path_fits_into_the_runtime_folder(runtime_dir):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(runtime_dir / "a-name-as-long-as-it-gets-in-these-tests.sock"))


def test_the_scratch_repository_is_clean(git_repo):
    status = subprocess.run(["git", "status", "--porcelain"], cwd=git_repo, capture_output=True, check=True)
    assert status.stdout == b""
