"""Changing values in JSON with comments, TOML and YAML lines, and leaving all else alone."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
import tomlkit
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lcpd.connect import jsonc, tomls, yamls
from lcpd.connect.edits import MISSING, EditError, Member

# ---- JSON ------------------------------------------------------------------------------------------------

COMMENTED = """\
{
    // which model to use
    "model": "theirs", // not ours
    /* all of them */
    "provider": {
        "other": { "options": {} },
    },
    "last": [1, 2]
}
"""


def test_a_value_is_replaced_where_it_stands():
    changed = jsonc.put(COMMENTED, ("model",), "ours")
    assert changed == COMMENTED.replace('"theirs"', '"ours"')


def test_a_new_member_goes_to_the_end_of_its_object_with_the_indentation_of_the_file():
    changed = jsonc.put(COMMENTED, ("provider", "lcpd", "npm"), "x")
    assert changed == COMMENTED.replace(
        '{ "options": {} },\n',
        '{ "options": {} },\n        "lcpd": {\n            "npm": "x"\n        }\n',
    )


def test_what_is_said_about_the_last_member_stays_beside_it():
    text = '{\n  "a": 1 // one\n}\n'
    assert jsonc.put(text, ("b",), 2) == '{\n  "a": 1, // one\n  "b": 2\n}\n'


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("", '{\n  "a": 1\n}\n'),
        ("{}", '{\n  "a": 1\n}'),
        ('{"b": 2}', '{"b": 2, "a": 1}'),
        ("{\n\t\n}", '{\n  "a": 1\n\t\n}'),
        ('{\n\t"b": {}\n}', '{\n\t"b": {},\n\t"a": 1\n}'),
        ('{\r\n  "b": 2\r\n}\r\n', '{\r\n  "b": 2,\r\n  "a": 1\r\n}\r\n'),
        ('\ufeff{"b": 2}', '\ufeff{"b": 2, "a": 1}'),
        ("// only a remark\n", '// only a remark\n{\n  "a": 1\n}\n'),
    ],
)
def test_the_style_of_the_file_is_kept(text, changed):
    assert jsonc.put(text, ("a",), 1) == changed


def test_a_value_that_is_there_already_changes_nothing():
    assert jsonc.put(COMMENTED, ("model",), "theirs") == COMMENTED
    assert jsonc.put('{"a": 1}', ("a",), True) == '{"a": true}'


def test_a_member_of_a_list_is_found_by_what_it_is_called():
    text = '{"models": [{"id": "other", "n": 1}, {"id": "ours", "n": 2}]}'
    place = ("models", Member("id", "ours"), "n")
    assert jsonc.get(text, place) == 2
    assert jsonc.put(text, place, 3) == text.replace("2}", "3}")
    added = jsonc.put(text, ("models", Member("id", "new"), "n"), 4)
    assert json.loads(added)["models"][2] == {"id": "new", "n": 4}


def test_of_a_key_that_comes_twice_the_last_one_counts():
    assert jsonc.put('{"a": 1, "a": 2}', ("a",), 3) == '{"a": 1, "a": 3}'


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ('{"a": }', ("a",), "line 1"),
        ('{\n"a": 1\n"b": 2}', ("a",), "line 3"),
        ('{"a": 1} x', ("a",), "line 1"),
        ("[1]", ("a",), "no JSON object"),
        ('{"a": 1}', ("a", "b"), "a is no object"),
        ('{"a": {"b": {}}}', ("a", "b", Member("id", "x")), "a.b is no list"),
        ('{"a": ' + "[" * 300, ("a",), "nested deeper"),
    ],
)
def test_what_cannot_be_changed_is_said_so(text, place, words):
    with pytest.raises(EditError, match=words):
        jsonc.put(text, place, 1)


keys = st.sampled_from(["a", "b", "c d", 'q"', "ü"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
documents = st.dictionaries(keys, json_values, max_size=4)
places = st.lists(keys, min_size=1, max_size=3).map(tuple)


@st.composite
def json_texts(draw):
    """JSON as people write it: with comments, trailing commas and their own indentation."""
    document = draw(documents)
    text = json.dumps(document, indent=draw(st.sampled_from([None, 2, 4, "\t"])), ensure_ascii=draw(st.booleans()))
    if draw(st.booleans()):
        text = re.sub(r"\n", lambda _: draw(st.sampled_from(["\n", "\r\n", " // why\n", "\n/* a, b */\n"])), text)
    return document, text + draw(st.sampled_from(["", "\n", "\n// end\n"]))


def merged(document, place, value):
    """What the document means with the value set; None where that cannot be."""
    head, *rest = place
    if not rest:
        return {**document, head: value}
    inner = document.get(head, {})
    if not isinstance(inner, dict):
        return None
    changed = merged(inner, rest, value)
    return None if changed is None else {**document, head: changed}


def meaning(text):
    return jsonc.get(text, ())


@given(json_texts(), places, json_values)
def test_setting_a_value_means_just_that_in_json(written, place, value):
    document, text = written
    wanted = merged(document, place, value)
    if wanted is None:
        with pytest.raises(EditError):
            jsonc.put(text, place, value)
        return
    changed = jsonc.put(text, place, value)
    assert meaning(changed) == wanted
    assert list(meaning(changed)) == list(wanted), "the order is kept"
    for remark in ("// why", "/* a, b */", "// end"):
        assert changed.count(remark) == text.count(remark) or value != jsonc.get(text, place)


@given(json_texts(), places, json_values)
def test_dropping_what_was_added_means_what_it_meant_before(written, place, value):
    document, text = written
    if jsonc.get(text, place) is not MISSING or merged(document, place, value) is None:
        return
    added = jsonc.put(text, place, value)
    dropped = jsonc.drop(added, place)
    assert jsonc.get(dropped, place) is MISSING
    for size in range(len(place) - 1, 0, -1):
        if jsonc.get(text, place[:size]) is MISSING:
            assert jsonc.is_empty(dropped, place[:size])
            dropped = jsonc.drop(dropped, place[:size])
    assert meaning(dropped) == document


@given(json_texts(), places)
def test_dropping_takes_one_value_and_no_other(written, place):
    document, text = written
    changed = jsonc.drop(text, place)
    assert jsonc.get(changed, place) is MISSING
    if jsonc.get(text, place) is MISSING:
        assert changed == text
    else:
        assert meaning(jsonc.put(changed, place, 7)) is not None
        assert {k: v for k, v in meaning(changed).items() if k != place[0]} == {
            k: v for k, v in document.items() if k != place[0]
        }


@given(st.text(alphabet='{}[]",:/* \n\\a1', max_size=30))
def test_any_text_is_json_or_refused_never_worse(text):
    try:
        changed = jsonc.put(text, ("a", "b"), 1)
    except EditError:
        return
    assert jsonc.get(changed, ("a", "b")) == 1


# ---- TOML ------------------------------------------------------------------------------------------------

TOML = """\
# my settings
model = "theirs" # for now

[projects."/home/me"]
trust_level = "trusted"

[model_providers.other]
name = "Other"
"""


def test_comments_and_order_of_toml_are_kept():
    changed = TOML
    for place, value in [
        (("model",), "ours"),
        (("model_provider",), "lcpd"),
        (("model_providers", "lcpd", "name"), "lcpd"),
        (("model_providers", "lcpd", "base_url"), "http://x/v1"),
    ]:
        changed = tomls.put(changed, place, value)
    assert changed == TOML.replace('"theirs"', '"ours"').replace(
        "# for now\n\n", '# for now\nmodel_provider = "lcpd"\n\n'
    ) + ('\n[model_providers.lcpd]\nname = "lcpd"\nbase_url = "http://x/v1"\n')


def test_a_table_on_the_way_gets_no_header_of_its_own():
    assert tomls.put("", ("a", "b", "c"), 1) == "[a.b]\nc = 1\n"


@pytest.mark.parametrize(("text", "words"), [("a = ", "no valid TOML"), ("a = 1\n", "a is no table")])
def test_toml_that_cannot_be_changed_is_said_so(text, words):
    with pytest.raises(EditError, match=words):
        tomls.put(text, ("a", "b"), 1)


toml_keys = st.sampled_from(["a", "b", "c d"])
toml_values = st.booleans() | st.integers(-9, 9) | st.text(alphabet='a"\\ü\n', max_size=4)
toml_documents = st.dictionaries(
    toml_keys,
    toml_values | st.dictionaries(toml_keys, toml_values | st.dictionaries(toml_keys, toml_values)),
    max_size=3,
)


@given(toml_documents, st.lists(toml_keys, min_size=1, max_size=3).map(tuple), toml_values)
def test_setting_a_value_means_just_that_in_toml(document, place, value):
    text = tomlkit.dumps(document)
    wanted = merged(document, place, value)
    if wanted is None:
        with pytest.raises(EditError):
            tomls.put(text, place, value)
        return
    changed = tomls.put(text, place, value)
    assert tomllib.loads(changed) == wanted
    if tomls.get(text, place) is MISSING:
        assert tomls.get(tomls.drop(changed, place), place) is MISSING


# ---- YAML ------------------------------------------------------------------------------------------------

YAML = """\
# aider
model: theirs  # for now
#model: older
read:
  - CONVENTIONS.md
dark-mode: true
"""


def test_lines_of_yaml_are_changed_and_added():
    changed = yamls.put(YAML, ("model",), "openai/demo:hybrid")
    changed = yamls.put(changed, ("timeout",), 1800)
    assert changed == YAML.replace("theirs", "openai/demo:hybrid") + "timeout: 1800\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: b", "b"),
        ('a: "b # c" # d\n', "b # c"),
        ("a: 'it''s'\n", "it's"),
        ("a: 5\n", 5),
        ("a: no\n", False),
        ("a:\n", None),
        ("a: http://x/v1\n", "http://x/v1"),
        ("b: 1\na : 2\n", 2),
    ],
)
def test_values_of_yaml_are_read(text, value):
    assert yamls.get(text, ("a",)) == value


def test_a_value_over_several_lines_is_refused():
    with pytest.raises(EditError, match="several lines"):
        yamls.put(YAML, ("read",), "x")


def test_nothing_is_what_a_key_that_is_not_there_has():
    assert yamls.get(YAML, ("map-tokens",)) is MISSING
    assert yamls.drop(YAML, ("map-tokens",)) == YAML


@given(st.text(alphabet="ab: #'\"\\-1/", max_size=8) | st.integers(-99, 99) | st.booleans())
def test_what_is_written_is_read_again_and_can_be_dropped(value):
    changed = yamls.put(YAML, ("timeout",), value)
    assert yamls.get(changed, ("timeout",)) == value
    assert yamls.drop(changed, ("timeout",)) == YAML


@pytest.mark.parametrize("value", ["openai/x", "yes", "5", "a: b", "#", "", "http://127.0.0.1:8080/v1", True, 7])
def test_what_is_written_is_yaml(value):
    assert yaml.safe_load(yamls.put("", ("a",), value)) == {"a": value}
