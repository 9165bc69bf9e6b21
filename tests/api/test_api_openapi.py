"""The OpenAPI document says what the code checks, names every route, and is valid."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from fakes.api import use_keys
from lcpd.api.bodies import ChatBody, CompletionBody
from lcpd.api.docs_page import kind, page
from lcpd.api.openapi import SHAPES, document, rule_schema
from lcpd.api.operations import OPERATIONS
from lcpd.api.sampling import NO_EFFECT, RULES, By, Flag, Number, Only, Whole

ALL_RULES = {**RULES, **ChatBody.rules, **{f"text {name}": rule for name, rule in CompletionBody.rules.items()}}
NOT_IN_THE_DOCUMENT = "describe the route in lcpd.api.operations, or take it out there"


def test_the_document_is_valid():
    OpenAPIV31SpecValidator(document()).validate()


async def test_every_route_is_in_the_document_and_nothing_else(make_client):
    app = (await make_client()).app
    there = {
        (route.method, route.resource.canonical) for route in app.router.routes() if route.method not in ("HEAD", "*")
    }
    twice = {(method, path) for method, path in there if (method, f"/v1{path}") in there}
    assert there - twice == set(OPERATIONS), NOT_IN_THE_DOCUMENT


def test_operations_have_names_of_their_own():
    names = [operation["operationId"] for item in document()["paths"].values() for operation in item.values()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"\w+", name) for name in names)


def test_a_body_shows_the_sampling_fields_that_are_checked():
    fields = document()["components"]["schemas"]["ChatBody"]["properties"]
    assert set(RULES) | set(NO_EFFECT) <= set(fields)
    assert fields["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 100}
    assert fields["n_keep"]["enum"] == [0, None]


def test_every_check_of_its_own_has_its_shape():
    assert set(SHAPES) == {name for name, rule in RULES.items() if isinstance(rule, By)}


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-3, 200)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda value: not value.is_integer())
    | st.sampled_from(["", "x", "dkypsmtxea", "top_k", "text", "json_object", "json_schema", "5"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "schema", "json_schema", "7"]), inner, max_size=3)
    ),
    max_leaves=6,
)


SIMPLE = [name for name, rule in ALL_RULES.items() if isinstance(rule, Number | Whole | Flag | Only)]


@settings(max_examples=400)
@given(st.sampled_from(SIMPLE), values)
def test_a_simple_fields_schema_takes_what_the_check_takes_and_no_more(name, value):
    rule = ALL_RULES[name]
    assert Draft202012Validator(rule_schema(name, rule)).is_valid(value) == (rule.problem(value) is None)


@settings(max_examples=400)
@given(st.sampled_from(sorted(SHAPES)), values)
def test_a_schema_never_takes_what_the_check_refuses(name, value):
    if Draft202012Validator(SHAPES[name]).is_valid(value):
        assert RULES[name].problem(value) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", ["a", "b"]),
        ("samplers", ["top_k", "temperature"]),
        ("samplers", "kt"),
        ("logit_bias", {"5": -1.5, "hello": False}),
        ("logit_bias", [[5, 1], ["hello", False]]),
        ("dry_sequence_breakers", ["\n"]),
        ("grammar", 'root ::= "a"'),
        ("json_schema", {"type": "object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {}}}),
        ("response_format", {"type": "json_object"}),
        ("reasoning_budget_message", "enough"),
    ],
)
def test_the_schemas_take_what_is_usual(name, value):
    assert Draft202012Validator(SHAPES[name]).is_valid(value)
    assert RULES[name].problem(value) is None


@pytest.mark.parametrize("path", ["/health", "/version", "/slots", "/cache", "/props", "/v1/models", "/v1/models/fake"])
async def test_what_a_route_answers_is_as_the_document_says(make_client, path):
    client = await make_client()
    response = await client.get(path)
    spec = document()["paths"]["/v1/models/{name}" if path.endswith("/fake") else path]["get"]
    content = spec["responses"][str(response.status)]["content"]
    assert Draft202012Validator(content["application/json"]["schema"]).is_valid(await response.json())


async def test_the_document_and_the_page_need_no_key(make_client):
    client = await make_client()
    use_keys(client, "secret")
    assert (await client.get("/slots")).status == 401
    assert (await (await client.get("/openapi.json")).json())["openapi"].startswith("3.1")
    answer = await client.get("/docs")
    assert answer.status == 200
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")


class Elements(HTMLParser):
    """The tags of a page, checked to be closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag):
        while (last := self._open.pop()) != tag:
            assert last in ("tr", "td"), f"{last} is closed by {tag}"


def test_the_page_shows_every_route_and_loads_nothing():
    elements = Elements()
    elements.feed(page())
    assert not {"script", "img", "link", "iframe"} & set(elements.seen)
    assert "://" not in page()
    for method, path in OPERATIONS:
        assert f'<span class="method">{method}</span> <code>{path}</code>' in page()


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string"),
        ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, "string or list of string"),
        ({"type": "integer", "minimum": 1, "maximum": 2}, "integer from 1 to 2"),
        ({"$ref": "#/components/schemas/Tool"}, "Tool"),
        ({"enum": ["a", None]}, "one of 'a'"),
        ({"enum": [None]}, "nothing"),
        ({}, "anything"),
    ],
)
def test_a_schema_in_words(schema, words):
    assert kind(schema) == words
