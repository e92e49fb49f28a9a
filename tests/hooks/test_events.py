"""Events say what handlers are told; without handlers everything goes on."""

from dataclasses import fields

from aerix.actors import Actor
from aerix.hooks import events
from aerix.hooks.events import Decision, Event, NoHooks, PreToolUse, UserPromptSubmit

ALL = [
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
]


def test_a_matcher_is_compared_with_the_field_that_the_event_names():
    event = PreToolUse(tool_name="bash", tool_input={"command": "ls"}, tool_use_id="c1")
    assert (event.name, event.matcher_value) == ("PreToolUse", "bash")


def test_an_event_without_a_matcher_field_has_nothing_to_compare():
    assert UserPromptSubmit(prompt="hello").matcher_value is None


def test_every_matched_field_is_one_of_the_events_own():
    assert [
        kind for kind in ALL if kind.matched and kind.matched not in {field.name for field in fields(kind)}
    ] == []


def test_without_handlers_every_event_goes_on():
    assert Decision() == NoHooks().fire(Actor(), UserPromptSubmit(prompt="hello"))
