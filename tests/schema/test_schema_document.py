"""Requests that schemathesis makes from the OpenAPI document: nothing crashes, and every answer is as it says.

They are drawn from a fixed seed. ``LCPD_SCHEMA_EXAMPLES=1000`` sends that many to each route, drawn anew.
"""

from __future__ import annotations

import os

import httpx
import pytest
import schemathesis
from benchmarks.servers import Server
from hypothesis import HealthCheck, settings
from schema_daemon import ADMIN_KEY
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from lcpd.api.openapi import document

pytestmark = pytest.mark.schema
SHORT = 15
EXAMPLES = int(os.environ.get("LCPD_SCHEMA_EXAMPLES", SHORT))
NOT_THIS_MODEL = 501
"""The only status from 500 on that is right: the tiny hybrid is no reranker, and cannot infill."""


def no_server_error(
    context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """A check."""
    assert response.status_code < 500 or response.status_code == NOT_THIS_MODEL, response.text


CHECKS = [
    no_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]
# That sleep would stop the engine that the other routes need; without the key it is refused.
ADMIN_ROUTES = ("/cache/",)
api = schemathesis.openapi.from_dict(document())


def test_the_daemon_serves_the_document_that_the_requests_are_made_from(server: Server) -> None:
    assert httpx.get(f"{server.url}/openapi.json").json() == document()


@api.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES == SHORT,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_as_the_document_says(server: Server, case: schemathesis.Case) -> None:
    headers = {"x-api-key": ADMIN_KEY} if case.path.startswith(ADMIN_ROUTES) else {}
    case.call_and_validate(base_url=server.url, headers=headers, checks=CHECKS, timeout=60)


def test_nothing_of_that_has_killed_a_process(server: Server) -> None:
    assert httpx.get(f"{server.url}/health").json()["restarts"] == 0
