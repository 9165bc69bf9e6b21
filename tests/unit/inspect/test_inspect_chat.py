"""What a chat template can do, by its text."""

from __future__ import annotations

import pytest

from lcpd.inspect.chat import chat_template, read_template
from lcpd.inspect.metadata import Metadata, ShapeError

CHATML = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}{% endfor %}"


def test_a_template_that_shows_any_role_takes_system_messages_and_no_tools() -> None:
    template = read_template(CHATML)
    assert (template.system, template.tools, template.tool_calls, template.thinking) == (True, False, False, "no")


def test_tools_are_known_by_the_name_in_code() -> None:
    assert read_template(CHATML + "{%- if tools %}...{% endif %}").tools
    assert read_template("{% if not tools is defined %}{% set tools = none %}{% endif %}").tools


@pytest.mark.parametrize(
    "text", ["You have tools.", "{# with tools #}", "{{ 'You may use tools' }}", "{{ mytools }}", '{{ "tools" }}']
)
def test_tools_in_prose_comments_and_texts_are_none(text: str) -> None:
    assert not read_template(text).tools


def test_earlier_tool_calls_are_known_by_their_name() -> None:
    assert read_template("{% if message.tool_calls %}").tool_calls
    assert read_template("{% if 'tool_calls' in message %}").tool_calls


def test_a_template_that_raises_for_system_messages_does_not_take_them() -> None:
    text = "{% if m['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    assert not read_template(text).system


def test_a_template_without_roles_takes_no_system_messages() -> None:
    assert not read_template("{{ bos_token }}{{ messages[0].content }}").system


@pytest.mark.parametrize(
    ("text", "thinking"),
    [
        (
            "{% if enable_thinking is defined and not enable_thinking %}<think>{% endif %}",
            "switched by enable_thinking",
        ),
        ("{% set effort = reasoning_effort %}", "switched by reasoning_effort"),
        ("{{ '<think>\n' }}", "yes"),
        ("{% if message.reasoning_content %}{% endif %}", "yes"),
        ("{{ message.thinking }}", "no"),  # what the model thought, not whether it shall
        ("{{ 'I think' }}", "no"),
    ],
)
def test_thinking_is_switched_always_there_or_not_there(text: str, thinking: str) -> None:
    assert read_template(text).thinking == thinking


def test_further_templates_are_named() -> None:
    values = {"tokenizer.chat_template": CHATML, "tokenizer.chat_template.tool_use": "{{ tools }}"}
    template = chat_template(Metadata({"general.architecture": "llama"} | values))
    assert template is not None
    assert template.variants == ("tool_use",)


def test_a_base_model_has_none() -> None:
    assert chat_template(Metadata({"general.architecture": "llama"})) is None


def test_a_template_that_is_no_text_is_refused() -> None:
    with pytest.raises(ShapeError, match="chat_template must be a text"):
        chat_template(Metadata({"general.architecture": "llama", "tokenizer.chat_template": 7}))


@pytest.mark.parametrize(
    "text",
    ["{%" * 50_000, "{% a %}" * 50_000, "{" * 100_000, "{{'" * 50_000, '{{"' + "'\"" * 50_000, "{#" * 50_000 + "#}"],
)
def test_a_template_made_to_take_long_does_not(text: str) -> None:
    assert read_template(text).length == len(text)
