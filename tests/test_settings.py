"""Settings: their layers, their errors, what a folder may change, and when they are checked."""

import fcntl
import json
import os
import subprocess
import sys
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerix import folders
from aerix.actors import Refused
from aerix.pool.address import default_socket
from aerix.pool.fit import KV_BYTES
from aerix.pool.members import LOAD_FLAGS
from aerix.pool.protocol import Sampling
from aerix.settings import ModelSettings, SettingsError, load_settings, schema
from aerix.settings_layers import Layer, project_folder
from aerix.settings_permissions import keep_rules, overrides
from aerix.settings_pool import load_flags, pool_settings, sampling
from aerix.settings_schema import KEYS, REF, TOOL_NAMES, dotted, find, toml

NOT_BUILT = [key for key in KEYS if key.missing]
BUILT = [key for key in KEYS if not key.missing]


@pytest.fixture
def project(tmp_path):
    """A project's folder, with a place for its settings."""
    (tmp_path / "project/.git").mkdir(parents=True)
    (tmp_path / "project/.aerix").mkdir()
    return tmp_path / "project"


@pytest.fixture
def user(own_home):
    """The user's own settings file; its folder is there."""
    folder = folders.config()
    folder.mkdir(parents=True)
    return folder / "settings.toml"


def error(project, **more):
    with pytest.raises(SettingsError) as found:
        load_settings(project, **more)
    return found.value


def value_for(key):
    """A value that a key's schema allows."""
    kind = key.schema["type"]
    if "enum" in key.schema:
        return json.dumps(key.schema["enum"][0])
    if "enum" in key.schema.get("items", ()):
        return json.dumps(key.schema["items"]["enum"][:1])
    texts = '["bash"]' if key.appends else '["x"]'
    return {"string": '"/x"', "array": texts, "boolean": "false"}.get(kind) or str(key.schema.get("minimum"))


# --- the defaults -------------------------------------------------------------------------------------------------


@pytest.mark.rule("settings.defaults")
def test_without_settings_the_defaults_hold(project):
    settings = load_settings(project)
    assert settings.models.main is None
    assert (settings.pool.command, settings.pool.flags) == ((), ())
    assert (settings.pool.max_connections, settings.pool.start_timeout_secs) == (4, 900)
    assert settings.delegation.max_turns == 40
    assert settings.context.max_new_tokens == 4096
    caps = settings.context.tool_caps
    assert (caps.read, caps.bash, caps.grep, caps.glob) == (16384, 16384, 8192, 8192)
    generation = settings.generation
    assert (generation.temperature, generation.top_p, generation.min_p, generation.seed) == (
        0.2,
        0.95,
        0.05,
        None,
    )
    assert settings.notes == ()
    assert settings.source("pool.socket") == "default"


def test_the_default_socket_is_the_pools_own(project, monkeypatch):
    assert load_settings(project).pool.socket == default_socket()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert load_settings(project).pool.socket == default_socket() == folders.state() / "pool.sock"


def test_a_socket_may_stand_below_the_home_folder(project, user, own_home):
    user.write_text('pool.socket = "~/p.sock"')
    assert load_settings(project).pool.socket == own_home / "p.sock"


# --- the layers ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("settings.layers")
def test_each_layer_wins_over_the_one_before_it(project, user, tmp_path):
    def turns(**more):
        settings = load_settings(project, **more)
        return settings.delegation.max_turns, settings.source("delegation.max_turns")

    user.write_text("delegation.max_turns = 30")
    assert turns() == (30, str(user))
    shared = project / ".aerix/settings.toml"
    shared.write_text("[delegation]\nmax_turns = 29")
    assert turns() == (29, str(shared))
    local = project / ".aerix/settings.local.toml"
    local.write_text("[delegation]\nmax_turns = 28")
    assert turns() == (28, str(local))
    named = tmp_path / "more.toml"
    named.write_text("[delegation]\nmax_turns = 50")
    assert turns(settings_file=named) == (50, str(named))
    env = os.environ | {"AERIX_DELEGATION__MAX_TURNS": "51"}
    assert turns(settings_file=named, env=env) == (51, "AERIX_DELEGATION__MAX_TURNS")
    overrides = ["delegation.max_turns=52", "delegation.max_turns = 53"]
    assert turns(settings_file=named, env=env, overrides=overrides) == (53, "-c delegation.max_turns = 53")


@pytest.mark.rule("settings.layers")
def test_tables_merge_and_lists_replace(project, user, tmp_path):
    user.write_text('[pool]\nflags = ["--a", "--b"]\nmax_connections = 2\n[generation]\nseed = 1')
    (tmp_path / "more.toml").write_text('[pool]\nflags = ["--c"]')
    settings = load_settings(project, settings_file=tmp_path / "more.toml")
    assert (settings.pool.flags, settings.pool.max_connections, settings.generation.seed) == (("--c",), 2, 1)


@pytest.mark.rule("settings.command-line")
@pytest.mark.parametrize(
    ("text", "read", "expected"),
    [
        ("models.main=hf:org/repo:Q4", lambda s: s.models.main, "hf:org/repo:Q4"),
        ('models.main="a b"', lambda s: s.models.main, "a b"),
        ("models.main=http://host:1/v1#m?a=b", lambda s: s.models.main, "http://host:1/v1#m?a=b"),
        ("generation.seed=7", lambda s: s.generation.seed, 7),
        ("generation.temperature=1", lambda s: s.generation.temperature, 1.0),
        ("delegation.max_turns=5.0", lambda s: s.delegation.max_turns, 5),
        ('pool.flags=["--x", "y"]', lambda s: s.pool.flags, ("--x", "y")),
        ("pool={max_connections=2}", lambda s: s.pool.max_connections, 2),
        ('models."http://h/v1?a=b#m".window=4096', lambda s: s.models.of("http://h/v1?a=b#m").window, 4096),
    ],
)
def test_an_override_is_a_toml_value_or_a_bare_word(project, text, read, expected):
    found = read(load_settings(project, overrides=[text]))
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.rule("settings.command-line")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("generation.seed", "this is not key=value, such as -c generation.seed=1."),
        ("=1", "this is not key=value, such as -c generation.seed=1."),
        ("a b=1", "this is not key=value, such as -c generation.seed=1."),
        ("[x]\ny=1", "this is not key=value, such as -c generation.seed=1."),
        ('pool.flags=["a"', '["a" is not a TOML value: Unclosed array (at end of document).'),
    ],
)
def test_an_override_that_cannot_be_read_says_so(project, text, message):
    found = error(project, overrides=[text])
    assert (found.code, found.message) == ("bad_override", f"-c {text}: {message}")


@pytest.mark.rule("settings.command-line")
def test_a_value_cannot_bring_another_key(project):
    settings = load_settings(project, overrides=["models.main=1\nx = 2"])
    assert settings.models.main == "1\nx = 2"


@pytest.mark.rule("settings.variables")
def test_an_empty_variable_is_not_set(project):
    assert load_settings(project, env=os.environ | {"AERIX_MODELS__MAIN": ""}).models.main is None


@pytest.mark.rule("settings.variables")
def test_variables_of_other_kinds_are_no_settings(project):
    env = os.environ | {"AERIX_BOUND_READ_LINES": "3", "AERIX_BOUND_A__B": "3", "AERIX_TEST_MODEL": "x"}
    assert load_settings(project, env=env).notes == ()


@pytest.mark.rule("settings.variables")
def test_a_variable_with_one_underscore_too_few_is_noted(project):
    env = os.environ | {"AERIX_CONTEXT_TOOL_CAPS_READ": "300", "AERIX_POOL_SOCKET": "/x"}
    assert load_settings(project, env=env).notes == (
        "AERIX_CONTEXT_TOOL_CAPS_READ is not a setting, and is not used; AERIX_CONTEXT__TOOL_CAPS__READ is.",
        "AERIX_POOL_SOCKET is not a setting, and is not used; AERIX_POOL__SOCKET is.",
    )


def test_settings_of_single_models_are_found_by_their_reference(project, user):
    user.write_text('[models."scripted:a.jsonl"]\nwindow = 4096\n[models."x"]\nthreads = 2')
    models = load_settings(project).models
    assert models.of("scripted:a.jsonl").flags() == {"window": 4096}
    assert models.of("x") == ModelSettings(threads=2)
    assert models.of("y").flags() == {}
    assert models.of("y", "x", "scripted:a.jsonl").flags() == {"threads": 2}


ONE_MODEL = """
[models."m"]
window = 4096
cells = 9000
gpu_layers = 0
kv_type = "q8_0"
threads = 3
batch = 256
template = "chatml"
thinking = 0
key_env = "MY_KEY"
temperature = 0
top_p = 0.5
min_p = 0.1
seed = 7
"""


@pytest.mark.rule("settings.models-table")
@pytest.mark.rule("models.per-model-settings")
def test_a_models_table_holds_what_it_is_loaded_with_and_how_its_tokens_are_drawn(project, user):
    user.write_text(ONE_MODEL)
    settings = load_settings(project)
    assert load_flags(settings, "hf:o/r/m.gguf", "m") == {
        "window": 4096, "cells": 9000, "gpu_layers": 0, "kv_type": "q8_0", "threads": 3, "batch": 256, "template": "chatml",
        "thinking": 0, "key_env": "MY_KEY",
    }  # fmt: skip
    assert set(load_flags(settings, "m")) <= set(LOAD_FLAGS)
    assert sampling(settings, "m") == Sampling(0.0, 0.5, 0.1, 7)
    assert sampling(settings, "other") == Sampling(0.2, 0.95, 0.05, None)
    assert pool_settings(settings, "m").load == ()
    assert pool_settings(settings, "other", "as written").load == ("other",)


@pytest.mark.rule("settings.models-table")
def test_the_command_line_wins_over_how_one_models_tokens_are_drawn(project, user):
    user.write_text(ONE_MODEL + "[generation]\ntop_p = 0.9\n")
    settings = load_settings(project, overrides=["generation.seed=1", "generation.temperature=1"])
    assert sampling(settings, "m") == Sampling(1.0, 0.5, 0.1, 1)


@pytest.mark.rule("models.per-model-settings")
def test_a_template_is_a_name_or_a_file_that_is_read(project, user, own_home):
    (own_home / "t.jinja").write_text("{{ messages }}")
    for written in ("~/t.jinja", str(own_home / "t.jinja")):
        user.write_text(f'[models."m"]\ntemplate = "{written}"')
        assert load_flags(load_settings(project), "m") == {"template": "{{ messages }}"}
    (own_home / "bytes").write_bytes(b"\xff")
    (own_home / "empty").write_text("\n")
    for name, why in (
        ("none", "there is no such file"),
        ("bytes", "it is not UTF-8 text"),
        ("empty", "it is empty"),
        ("", "it is not a regular file"),
    ):
        user.write_text(f'[models."m"]\ntemplate = "~/{name}"')
        with pytest.raises(Refused, match=why) as refusal:
            load_flags(load_settings(project), "m")
        assert refusal.value.code == "bad_template"


@pytest.mark.rule("settings.models-table")
def test_a_folder_that_is_not_trusted_sets_nothing_of_a_model(project, user):
    (project / ".aerix/settings.toml").write_text(ONE_MODEL)
    settings = load_settings(project)
    assert settings.models.of("m") == ModelSettings()
    assert len(settings.notes) == 13


def test_the_types_of_a_cache_are_those_that_the_pool_knows():
    key = find(("models", REF, "kv_type"))
    assert key is not None
    assert key.schema["enum"] == list(KV_BYTES)


def test_the_project_is_the_nearest_folder_with_git(project):
    (project / "a/b").mkdir(parents=True)
    assert project_folder(project / "a/b") == project
    assert project_folder(project.parent) == project.parent


# --- the errors ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("settings.unknown-key")
@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[pool]\n\nsockte = 1", 3, "there is no setting pool.sockte; did you mean pool.socket?"),
        ("# x\npol.socket = 1", 2, "there is no setting pol; did you mean pool?"),
        ("temperature = 1", 1, "there is no setting temperature; did you mean generation.temperature?"),
        ('[models]\nmian = "x"', 2, "there is no setting models.mian; did you mean models.main?"),
        ('[models."a#b"]\nwindw = 1', 2, 'there is no setting models."a#b".windw; did you mean models."a#b".window?'),
        ("context.tool_caps.raed = 1", 1,
         "there is no setting context.tool_caps.raed; did you mean context.tool_caps.read?"),
        ("[[hooks]]\nx = 1", 1, "there is no setting hooks; did you mean tools?"),
        ("zzzzzz = 1", 1, "there is no setting zzzzzz; `aerix settings schema` shows all there are."),
    ],
)  # fmt: skip
def test_an_unknown_key_is_named_with_its_line_and_the_nearest(project, user, text, line, message):
    user.write_text(text)
    found = error(project)
    assert (found.code, found.message) == ("unknown_key", f"{user}, line {line}: {message}")


@pytest.mark.rule("settings.bad-value")
@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[pool]\nmax_connections = 0", 2, "pool.max_connections must be an integer from 1 to 64, not 0."),
        ("[pool]\n\nflags = 'x'", 3, 'pool.flags must be a list of texts, not "x".'),
        ("pool.flags = [1]", 1, "pool.flags must be a list of texts, not 1."),
        ("pool.socket = 'x'", 1, 'pool.socket must be a path that begins with / or ~/, not "x".'),
        ("pool = 3", 1, "pool must be a table, not 3."),
        ("[models.main]\nx = 1", 1, "models.main must be a text that is not empty, not {…}."),
        ("models.main = ''", 1, 'models.main must be a text that is not empty, not "".'),
        ("generation.temperature = 2.5", 1, "generation.temperature must be a number from 0 to 2, not 2.5."),
        ("generation.temperature = nan", 1, "generation.temperature must be a number from 0 to 2, not nan."),
        ("generation.seed = true", 1, "generation.seed must be an integer from 0 to 4294967295, not true."),
        ("generation.seed = 1979-05-27", 1, "generation.seed must be an integer from 0 to 4294967295, not 1979-05-27."),
        ("generation.seed = '" + "x" * 99 + "'", 1, "generation.seed must be an integer from 0 to 4294967295, not "
         '"' + "x" * 58 + "…."),
        ("delegation.planner = 'often'", 1, 'delegation.planner must be one of "auto", "always", "never", not "often".'),
        ("delegation.planner_tools = ['fly']", 1, f'delegation.planner_tools must be a list of {", ".join(TOOL_NAMES)}, not "fly".'),
        ("tools.network = 1", 1, "tools.network must be true or false, not 1."),
    ],
)  # fmt: skip
def test_a_bad_value_is_named_with_its_line_and_what_is_allowed(project, user, text, line, message):
    user.write_text(text)
    found = error(project)
    assert (found.code, found.message) == ("bad_value", f"{user}, line {line}: {message}")


@pytest.mark.rule("settings.bad-value")
def test_a_bad_variable_is_named(project):
    found = error(project, env=os.environ | {"AERIX_POOL__SOCKET": "here"})
    assert (
        found.message
        == 'AERIX_POOL__SOCKET: pool.socket must be a path that begins with / or ~/, not "here".'
    )


def test_every_problem_is_told_at_once(project, user):
    user.write_text("[pool]\na = 1\nmax_connections = 'x'")
    found = error(project, overrides=["generation.seed=-1"])
    assert sorted(problem.code for problem in found.problems) == ["bad_value", "bad_value", "unknown_key"]
    assert len(found.message.splitlines()) == 3


@pytest.mark.rule("settings.bad-toml")
@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"pool socket", "is not TOML: Expected '=' after a key in a key/value pair (at line 1, column 6)."),
        (b"x = " + b"[" * 50_000, "is not TOML: it is nested too deep."),
        (b"x = '\xff'", "cannot be read: it is not UTF-8 text."),
    ],
)
def test_a_file_that_is_not_toml_says_where(project, user, raw, message):
    user.write_bytes(raw)
    found = error(project)
    assert (found.code, found.message) == ("bad_toml", f"{user} {message}")


@pytest.mark.rule("settings.unreadable")
def test_a_file_that_cannot_be_read_says_why(project, user, tmp_path):
    absent = tmp_path / "absent.toml"
    found = error(project, settings_file=absent)
    assert (found.code, found.message) == ("unreadable", f"{absent} cannot be read: there is no such file.")
    os.mkfifo(user)
    assert error(project).message == f"{user} cannot be read: it is not a regular file."


@pytest.mark.bound("settings.file")
@pytest.mark.rule("settings.unreadable")
def test_a_settings_file_has_a_bound(project, user, monkeypatch):
    monkeypatch.setenv("AERIX_BOUND_SETTINGS_FILE", "10")
    user.write_text("# a longer comment")
    assert error(project).message == f"{user} cannot be read: it is larger than 10 bytes."


@settings(deadline=None)
@given(
    st.dictionaries(st.text("abc_\"'.=[]#\n ", max_size=4), st.integers() | st.text(max_size=4), max_size=4)
)
def test_a_line_is_looked_for_in_any_text_without_harm(data):
    text = "\n".join(f"{key}={value}" for key, value in data.items())
    Layer("x", text, {}).where(("a", "b"))


# --- what is not built --------------------------------------------------------------------------------------------


@pytest.mark.rule("settings.not-built")
@pytest.mark.parametrize("key", NOT_BUILT, ids=lambda key: dotted(key.path))
def test_a_key_whose_feature_is_not_built_is_refused_by_name(project, user, key):
    user.write_text(f"{dotted(key.path)} = {value_for(key)}")
    found = error(project)
    assert found.code == "not_built"
    assert found.message == f"{user}, line 1: {dotted(key.path)} cannot be set: {key.missing}. Remove it."


@pytest.mark.rule("settings.not-built")
@pytest.mark.parametrize("key", BUILT, ids=lambda key: dotted(key.path))
def test_a_key_whose_feature_is_built_can_be_set(project, user, key):
    user.write_text(f"{dotted(key.path)} = {value_for(key)}")
    assert load_settings(project).source(dotted(key.path)) == str(user)


# --- a folder that is not trusted ---------------------------------------------------------------------------------


@pytest.mark.rule("settings.tighten-only")
@pytest.mark.parametrize("name", ["settings.toml", "settings.local.toml"])
@pytest.mark.parametrize("key", [k for k in KEYS if k.tighten == "never"], ids=lambda key: dotted(key.path))
def test_what_cannot_tighten_is_not_taken_from_a_folder(project, name, key):
    file = project / ".aerix" / name
    file.write_text(f"\n{dotted(key.path)} = {value_for(key)}")
    settings = load_settings(project)
    why = "this folder is not trusted, and its settings may only tighten until `aerix trust` takes them"
    assert settings.notes == (f"{file}, line 2: {dotted(key.path)} is not taken: {why}.",)
    assert settings.source(dotted(key.path)) == "default"


@pytest.mark.rule("settings.tighten-only")
@pytest.mark.parametrize(
    "key",
    [k for k in BUILT if k.tighten == "lower" and "minimum" in k.schema],
    ids=lambda key: dotted(key.path),
)
def test_a_limit_may_only_be_lowered_by_a_folder(project, user, key):
    name, file = dotted(key.path), project / ".aerix/settings.toml"
    low, middle = key.schema["minimum"], key.default - 1
    user.write_text(f"{name} = {middle}")
    for more in (f"{middle + 1}", f"{middle + 1}.0"):
        file.write_text(f"{name} = {more}")
        settings = load_settings(project)
        why = f"this folder is not trusted, and may only lower it from {middle}"
        assert settings.notes == (f"{file}, line 1: {name} is not taken: {why}.",)
        assert settings.values[key.path] == middle
    for less in (middle, low):
        file.write_text(f"{name} = {less}")
        settings = load_settings(project)
        assert (settings.values[key.path], settings.notes) == (less, ())


@pytest.mark.rule("settings.tighten-only")
@pytest.mark.parametrize(
    ("name", "lowest_first"),
    [("tools.sandbox", ['"on"', '"auto"', '"off"']), ("tools.network", ["false", "true"])],
)
def test_a_choice_may_only_be_made_narrower_by_a_folder(project, user, name, lowest_first):
    file = project / ".aerix/settings.toml"
    for mine, own in enumerate(lowest_first):
        user.write_text(f"{name} = {own}")
        for theirs, other in enumerate(lowest_first):
            file.write_text(f"{name} = {other}")
            settings = load_settings(project)
            why = f"this folder is not trusted, and may only lower it from {own}"
            refused = (f"{file}, line 1: {name} is not taken: {why}.",) if theirs > mine else ()
            value = toml(settings.values[tuple(name.split("."))])
            assert (value, settings.notes) == (lowest_first[min(mine, theirs)], refused)


@pytest.mark.rule("settings.tighten-only")
@pytest.mark.parametrize("default", ["ask", "auto-edit", "auto"])
def test_a_folder_may_add_denials_and_questions_and_set_a_stricter_mode(project, user, default):
    file = project / ".aerix/settings.toml"
    user.write_text('permissions.deny = ["read"]')
    for mode, stricter in (("ask", True), ("auto-edit", default != "ask"), ("auto", default == "auto")):
        file.write_text(f'[permissions]\nmode = "{mode}"\ndeny = ["bash"]\nask = ["edit"]\nallow = ["bash"]')
        settings = load_settings(project, mode=default)
        assert settings.permissions.deny == ("read", "bash")
        assert (settings.permissions.ask, settings.permissions.allow) == (("edit",), ())
        assert settings.permissions.mode == (mode if stricter else default)
        assert len(settings.notes) == (1 if stricter else 2)


@pytest.mark.rule("settings.layers")
def test_permission_rules_append_and_what_was_allowed_for_ever_is_one_of_the_layers(project, user):
    user.write_text('permissions.allow = ["bash(a)"]')
    assert keep_rules(["bash(b)", 'bash(echo "x\\y")']) == f"kept in {user.parent / 'permissions.toml'}"
    odd = [f"read({chr(n)})" for n in (*range(1, 32), 127, 0x85, 0x2028, 0x1F600)]
    assert keep_rules(["bash(b)", *odd]).startswith("kept in")
    assert load_settings(project).permissions.allow[3:] == tuple(odd)
    kept = user.parent / "permissions.toml"
    kept.unlink()
    assert keep_rules(["bash(b)", 'bash(echo "x\\y")']).startswith("kept in")
    assert keep_rules(["bash(b)", "read(\udcff)"]).startswith("it holds for this session only")
    settings = load_settings(project, overrides=overrides("ask", ["bash(c)"], ["read"]))
    assert settings.permissions.allow == ("bash(a)", "bash(b)", 'bash(echo "x\\y")', "bash(c)")
    assert settings.permissions.deny == ("read",)
    assert settings.source("permissions.allow") == f'{user}, {kept}, -c permissions.allow=["bash(c)"]'
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.rule("permissions.asks-once")
def test_a_file_that_is_not_as_it_was_written_is_not_written_over(user):
    kept = user.parent / "permissions.toml"
    for text in ("permissions.mode = 'ask'", "not TOML", "permissions.allow = 1", "permissions = 1"):
        kept.write_text(text)
        assert keep_rules(["bash"]).startswith(
            f"it holds for this session only: {kept} could not be written ("
        )
        assert kept.read_text() == text


KEEP = """
import sys
from aerix.settings_permissions import keep_rules
print("ready", flush=True)
for line in sys.stdin:
    print(keep_rules([line.strip()]), flush=True)
"""


@pytest.fixture
def keeper():
    """Starts a process that keeps each rule it is told for ever, a line a rule, and says what came of it."""
    started = []

    def start():
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([sys.executable, "-c", KEEP], **pipes))
        return started[-1]

    yield start
    for process in started:
        process.communicate(timeout=30)


def kept_rules(kept):
    return tomllib.loads(kept.read_text())["permissions"]["allow"]


@pytest.mark.rule("permissions.kept-together")
def test_what_several_processes_keep_at_once_is_all_kept(user, keeper):
    processes = [keeper() for _ in range(3)]
    rules = [[f"bash(p{n} r{m})" for m in range(20)] for n in range(3)]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 3
    for process, its in zip(processes, rules, strict=True):
        process.stdin.write("".join(f"{rule}\n" for rule in its))
        process.stdin.flush()
    kept = user.parent / "permissions.toml"
    said = {line for process in processes for line in process.communicate(timeout=30)[0].splitlines()}
    assert said == {f"kept in {kept}"}
    found = kept_rules(kept)
    assert sorted(found) == sorted(rule for its in rules for rule in its)
    assert [[rule for rule in found if rule in its] for its in rules] == rules
    assert sorted(path.name for path in user.parent.iterdir()) == [".permissions.toml.lock", kept.name]


@pytest.mark.rule("permissions.kept-together")
def test_a_rule_waits_for_a_process_that_keeps_another_one(user, keeper):
    process, kept = keeper(), user.parent / "permissions.toml"
    with (user.parent / ".permissions.toml.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process.stdin.write("bash(second)\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        kept.write_text("[permissions]\nallow = ['bash(first)']\n")
    assert process.stdout.readline() == f"kept in {kept}\n"
    assert kept_rules(kept) == ["bash(first)", "bash(second)"]


@pytest.mark.rule("permissions.kept-together")
@pytest.mark.bound("settings.lock")
def test_a_lock_that_is_never_free_is_a_sentence(user, limit):
    limit("settings.lock", 0.02)
    kept = user.parent / "permissions.toml"
    with (user.parent / ".permissions.toml.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert keep_rules(["bash"]) == (
            f"it holds for this session only: {kept} could not be written (another aerix has held it for 0.02 s)"
        )
    assert not kept.exists()
    assert keep_rules(["bash"]) == f"kept in {kept}"


@pytest.mark.rule("permissions.bad-rule")
def test_a_text_that_is_no_rule_is_an_error_with_its_line(project, user):
    user.write_text('[permissions]\nmode = "ask"\ndeny = ["bash", "bahs(rm *)"]')
    found = error(project)
    assert found.code == "bad_rule"
    said = "'bahs(rm *)': there is no tool bahs; did you mean bash?"
    assert found.message == f"{user}, line 3: permissions.deny: {said}."


@pytest.mark.rule("settings.tighten-only")
def test_every_built_key_says_what_tightens_it():
    assert all(key.tighten for key in BUILT)
    commands = ("models", "pool.command", "pool.socket", "pool.flags", "permissions.allow")
    assert all(key.tighten == "never" for key in KEYS if dotted(key.path).startswith(commands))


@pytest.mark.rule("settings.tighten-only")
def test_the_user_may_loosen_again_what_a_folder_tightened(project):
    (project / ".aerix/settings.toml").write_text("delegation.max_turns = 2")
    assert load_settings(project, overrides=["delegation.max_turns=90"]).delegation.max_turns == 90


@pytest.mark.bound("start.notes")
@pytest.mark.rule("settings.tighten-only")
def test_many_refused_settings_are_counted(project, monkeypatch):
    monkeypatch.setenv("AERIX_BOUND_START_NOTES", "2")
    file = project / ".aerix/settings.toml"
    file.write_text("".join(f'[models."m{n}"]\nwindow = 4096\n' for n in range(9)))
    notes = load_settings(project).notes
    assert notes[2:] == (f"{file}: 7 more settings are not taken.",)


def test_a_settings_file_of_a_folder_that_is_a_fifo_is_refused_at_once(project):
    os.mkfifo(project / ".aerix/settings.toml")
    assert error(project).code == "unreadable"


# --- when they are checked ----------------------------------------------------------------------------------------

COUNT = """
import sys
from pathlib import Path
from aerix.settings import load_settings
load_settings(Path(sys.argv[1]))
print(int("jsonschema" in sys.modules), int("tomllib" in sys.modules), int("difflib" in sys.modules))
"""


def imported(project):
    command = [sys.executable, "-c", COUNT, str(project)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.rule("settings.checked-when-changed")
def test_settings_are_checked_again_only_when_they_changed(project, user):
    assert imported(project) == ["0", "0", "0"]
    user.write_text("generation.seed = 1")
    assert imported(project) == ["1", "1", "0"]
    assert imported(project) == ["0", "1", "0"]
    user.write_text("generation.seed = 2")
    assert imported(project) == ["1", "1", "0"]


@pytest.mark.bound("settings.checked")
@pytest.mark.rule("settings.checked-when-changed")
def test_over_the_settings_that_are_remembered_the_oldest_are_checked_again(project, user, limit):
    limit("settings.checked", 1)
    for seed in (1, 2):
        user.write_text(f"generation.seed = {seed}")
        assert imported(project)[0] == "1"
    assert imported(project)[0] == "0"
    user.write_text("generation.seed = 1")
    assert imported(project)[0] == "1"


@pytest.mark.rule("settings.checked-when-changed")
def test_bad_settings_are_never_remembered_as_good(project, user):
    user.write_text("generation.seed = -1")
    for _ in range(2):
        assert error(project).code == "bad_value"


@pytest.mark.rule("settings.checked-when-changed")
@pytest.mark.parametrize("broken", [b"\xff\xfe\n\n", b"", b"not a digest"])
def test_a_broken_memory_of_what_was_checked_does_no_harm(project, user, broken):
    user.write_text("generation.seed = 1")
    load_settings(project)
    memory = folders.cache() / "settings-checked"
    memory.write_bytes(broken)
    assert load_settings(project).generation.seed == 1
    assert imported(project)[0] == "0"


def test_without_a_place_for_the_memory_settings_are_checked_each_time(project, user, own_home):
    user.write_text("generation.seed = 1")
    (own_home / ".cache").write_text("a file stands in the way")
    for _ in range(2):
        assert load_settings(project).generation.seed == 1
    assert imported(project)[0] == "1"


# --- what is shown ------------------------------------------------------------------------------------------------


@pytest.mark.rule("settings.schema-published")
def test_the_published_schema_is_a_schema_with_every_key():
    from jsonschema import Draft202012Validator

    published = schema()
    Draft202012Validator.check_schema(published)
    json.dumps(published)
    for key in KEYS:
        at = published
        for part in key.path:
            at = at["additionalProperties"] if part == REF else at["properties"][part]
        assert key.schema.items() <= at.items()
        assert at["description"].startswith(key.text)


@pytest.mark.rule("settings.show")
def test_each_value_is_shown_with_its_source(project, user):
    user.write_text('[pool]\nflags = ["--x"]\n[models."a:b"]\nwindow = 4096')
    lines = load_settings(project).lines()
    assert f'pool.flags = ["--x"]  # {user}' in lines
    assert "generation.temperature = 0.2  # default" in lines
    assert "generation.seed = not set  # default" in lines
    assert f'models."a:b".window = 4096  # {user}' in lines
    assert any(
        line.startswith("tune.sessions = 20  # default (profiles and tuning are not") for line in lines
    )


@pytest.mark.rule("settings.show")
def test_a_shown_value_can_be_read_as_toml(project):
    text = "\n".join(line for line in load_settings(project).lines() if "= not set" not in line)
    assert tomllib.loads(text)["context"]["tool_caps"]["read"] == 16384


# --- the folders --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "variable", "below"),
    [
        (folders.config, "XDG_CONFIG_HOME", ".config/aerix"),
        (folders.data, "XDG_DATA_HOME", ".local/share/aerix"),
        (folders.state, "XDG_STATE_HOME", ".local/state/aerix"),
        (folders.cache, "XDG_CACHE_HOME", ".cache/aerix"),
    ],
)
def test_a_folder_is_the_variables_or_below_the_home(tmp_path, folder, variable, below):
    home = {"HOME": str(tmp_path)}
    assert (
        folder(home)
        == folder({**home, variable: "relative"})
        == folder({**home, variable: ""})
        == tmp_path / below
    )
    assert folder({**home, variable: "/x"}) == folders.Path("/x/aerix")


def test_sockets_stand_in_the_runtime_folder_where_there_is_one(tmp_path):
    env = {"HOME": "/nowhere", "XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": str(tmp_path)}
    assert folders.runtime(env) == tmp_path / "aerix"
    assert folders.runtime({**env, "XDG_RUNTIME_DIR": "/does/not/exist"}) == folders.Path("/s/aerix")


def test_a_private_folder_is_made_for_this_user_only_and_narrowed(tmp_path):
    folder = folders.private(tmp_path / "a/b")
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    assert folders.private(folder).stat().st_mode & 0o777 == 0o700
