"""What each client is told fits the server, and what does not fit is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcpd.api.limits import limits_of
from lcpd.connect.clients import CLIENTS
from lcpd.connect.clients.claude_code import compact_at, compact_percent
from lcpd.connect.drift import configured, drift, same_server
from lcpd.connect.edits import MISSING, EditError, Facts, spelled
from lcpd.connect.journal import FORMATS, applied

HOME = Path("/home/me")
KEY = "secret"


def facts_for(context: int, key: str | None = None) -> Facts:
    limits = limits_of(context)
    word = '"$(head -n 1 keys)"' if key else ""
    return Facts("http://127.0.0.1:8080", "demo:hybrid", context, limits.safe_context, limits.output, key, word)


FACTS = facts_for(65536)


def written(client: str, facts: Facts = FACTS, environ: dict[str, str] | None = None) -> dict[str, str]:
    """The files that a client would get, by name."""
    plan = CLIENTS[client].plan(facts, HOME, environ or {})
    return {one.file.name: applied(None, None, one).after.decode() for one in plan.files}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_that_is_configured_does_not_drift(client):
    for key in (None, KEY):
        for one in CLIENTS[client].plan(facts_for(65536, key), HOME, {}).files:
            assert list(drift(one, applied(None, None, one).after.decode())) == []


@pytest.mark.parametrize("client", CLIENTS)
def test_a_smaller_context_of_the_server_is_found(client):
    before = CLIENTS[client].plan(FACTS, HOME, {})
    now = CLIENTS[client].plan(facts_for(16384), HOME, {})
    found = [
        problem
        for old, new in zip(before.files, now.files, strict=True)
        for problem in drift(new, applied(None, None, old).after.decode())
    ]
    assert found, "the limits are those of another context"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_larger_context_of_the_server_is_no_problem(client):
    now = facts_for(98304)
    for old, new in zip(
        CLIENTS[client].plan(FACTS, HOME, {}).files, CLIENTS[client].plan(now, HOME, {}).files, strict=True
    ):
        assert list(drift(new, applied(None, None, old).after.decode())) == []


@pytest.mark.parametrize("client", CLIENTS)
@given(st.integers(4096, 2**22))
def test_what_a_client_counts_on_fits_the_context(client, context):
    """A prompt up to what it believes to be the context is never too long for the server."""
    for one in CLIENTS[client].plan(facts_for(context), HOME, {}).files:
        for edit in one.edits:
            if edit.check == "at most" and not spelled(edit.place).startswith("env.CLAUDE"):
                assert edit.value <= context
                assert edit.bound is None or edit.value <= edit.bound


@given(st.integers(49152, 2**22))
def test_claude_code_compacts_before_the_context_is_full(context):
    facts = facts_for(context)
    window, reserved = max(100_000, context), min(20_000, facts.output)
    percent = compact_percent(facts) if context < 100_000 else 100
    threshold = min((window - reserved) * percent // 100, window - reserved - 13_000)
    assert threshold + facts.output <= context
    assert threshold >= context // 2


def test_claude_code_at_65536_is_as_measured():
    assert compact_percent(FACTS) == 53
    assert compact_at(FACTS) == 49152


def test_a_context_too_small_for_claude_code_is_told():
    assert "49152" in CLIENTS["claude-code"].plan(facts_for(16384), HOME, {}).notes[0]
    assert CLIENTS["claude-code"].plan(FACTS, HOME, {}).notes == ()


@given(st.integers(8192, 2**22))
def test_a_compaction_of_pi_makes_room(context):
    facts = facts_for(context)
    files = CLIENTS["pi"].plan(facts, HOME, {}).files
    values = {edit.place[-1]: edit.value for one in files for edit in one.edits}
    assert 2 * values["keepRecentTokens"] < facts.safe_context - values["reserveTokens"]
    assert values["keepRecentTokens"] <= 20_000


def test_what_claude_code_is_told():
    env = FORMATS["json"].get(written("claude-code")["settings.json"], ("env",))
    assert env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8080"
    assert env["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "100000"
    assert all(isinstance(value, str) for value in env.values())


def test_what_codex_is_told():
    assert written("codex", facts_for(65536, KEY))["config.toml"] == (
        'model = "demo:hybrid"\n'
        'model_provider = "lcpd"\n'
        "model_context_window = 65536\n"
        "\n"
        "[model_providers.lcpd]\n"
        'name = "lcpd"\n'
        'base_url = "http://127.0.0.1:8080/v1"\n'
        'wire_api = "responses"\n'
        "stream_idle_timeout_ms = 1800000\n"
        'env_key = "LCPD_API_KEY"\n'
    )


def test_what_opencode_is_told():
    text = written("opencode")["opencode.json"]
    provider = FORMATS["json"].get(text, ("provider", "lcpd"))
    assert provider["npm"] == "@ai-sdk/openai-compatible"
    assert provider["models"]["demo:hybrid"]["limit"] == {"context": 62260, "output": 8192}
    assert FORMATS["json"].get(text, ("small_model",)) == "lcpd/demo:hybrid"


def test_what_aider_is_told():
    files = written("aider")
    assert "openai-api-base: http://127.0.0.1:8080/v1\n" in files[".aider.conf.yml"]
    assert "openai-api-key: lcpd\n" in files[".aider.conf.yml"]
    assert '"max_input_tokens": 62260' in files[".aider.model.metadata.json"]


@pytest.mark.parametrize("client", ["aider", "codex", "opencode", "pi"])
def test_a_key_is_named_and_not_written_where_the_client_can_look_it_up(client):
    plan = CLIENTS[client].plan(facts_for(65536, KEY), HOME, {})
    assert KEY not in "".join(written(client, facts_for(65536, KEY)).values()).replace("SECRET", "")
    assert [word for _, word in plan.exports] == ['"$(head -n 1 keys)"']
    assert CLIENTS[client].plan(FACTS, HOME, {}).exports == ()


@pytest.mark.parametrize(
    ("client", "environ", "file"),
    [
        ("aider", {}, "/home/me/.aider.conf.yml"),
        ("claude-code", {}, "/home/me/.claude/settings.json"),
        ("claude-code", {"CLAUDE_CONFIG_DIR": "/c"}, "/c/settings.json"),
        ("cline", {}, "/home/me/.cline/data/settings/providers.json"),
        ("cline", {"CLINE_DIR": "/c"}, "/c/data/settings/providers.json"),
        ("cline", {"CLINE_DATA_DIR": "/c"}, "/c/settings/providers.json"),
        ("codex", {}, "/home/me/.codex/config.toml"),
        ("codex", {"CODEX_HOME": "/c"}, "/c/config.toml"),
        ("opencode", {}, "/home/me/.config/opencode/opencode.json"),
        ("opencode", {"XDG_CONFIG_HOME": "/c"}, "/c/opencode/opencode.json"),
        ("opencode", {"OPENCODE_CONFIG": "/c/mine.json"}, "/c/mine.json"),
        ("pi", {}, "/home/me/.pi/agent/models.json"),
        ("pi", {"PI_CODING_AGENT_DIR": "/c"}, "/c/models.json"),
        ("qwen-code", {}, "/home/me/.qwen/settings.json"),
    ],
)
def test_where_a_clients_file_is(client, environ, file):
    assert CLIENTS[client].plan(FACTS, HOME, environ).files[0].file == Path(file)


def test_opencodes_file_with_comments_is_used_if_there_is_one(tmp_path):
    (tmp_path / "opencode").mkdir()
    (tmp_path / "opencode" / "opencode.jsonc").touch()
    plan = CLIENTS["opencode"].plan(FACTS, HOME, {"XDG_CONFIG_HOME": str(tmp_path)})
    assert plan.files[0].file.name == "opencode.jsonc"


# ---- drift -----------------------------------------------------------------------------------------------


def problems(client: str, change: tuple[str, str]) -> list[str]:
    (plan, *_) = CLIENTS[client].plan(FACTS, HOME, {}).files
    text = applied(None, None, plan).after.decode()
    assert change[0] in text
    return [f"{found.place} {found.what}" for found in drift(plan, text.replace(*change))]


@pytest.mark.parametrize(
    ("client", "change", "told"),
    [
        (
            "opencode",
            ('"context": 62260', '"context": 200000'),
            "provider.lcpd.models.demo:hybrid.limit.context is 200000, and the server has 65536; it should be 62260",
        ),
        ("opencode", ('"context": 62260', '"context": 65536'), None),
        ("opencode", ('"context": 62260', '"context": 4096'), None),
        ("opencode", ('"context": 62260', '"x": 1'), "limit.context is not set; it should be 62260"),
        ("opencode", ("127.0.0.1:8080", "localhost:8080"), None),
        (
            "opencode",
            ("127.0.0.1:8080", "127.0.0.1:9999"),
            "baseURL is http://127.0.0.1:9999/v1; the server is http://127.0.0.1:8080/v1",
        ),
        ("codex", ('"responses"', '"chat"'), "wire_api is chat; it should be responses"),
        ("codex", ("= 1800000", "= 300000"), "is 300000; it should be at least 1800000"),
        ("codex", ("= 1800000", "= 9000000"), None),
        ("codex", ("= 65536", '= "many"'), "is many; it should be 65536"),
        ("claude-code", ('"8192"', '"32000"'), "env.CLAUDE_CODE_MAX_OUTPUT_TOKENS is 32000, and the server has 8192"),
        ("claude-code", ('_TOKEN": "lcpd"', '_TOKEN": "other"'), None),
    ],
)
def test_what_does_not_fit_is_told_and_what_fits_is_not(client, change, told):
    found = problems(client, change)
    assert len(found) == bool(told)
    assert told is None or told in found[0]


def test_a_file_that_is_broken_is_said_so():
    (plan,) = CLIENTS["codex"].plan(FACTS, HOME, {}).files
    with pytest.raises(EditError):
        list(drift(plan, "a = "))


def test_what_is_configured_can_be_asked():
    (plan,) = CLIENTS["codex"].plan(FACTS, HOME, {}).files
    assert configured(plan, '[model_providers.lcpd]\nbase_url = "http://x/v1"\n', "url") == "http://x/v1"
    assert configured(plan, "", "url") is MISSING
    assert configured(plan, "", "key") is MISSING


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://localhost:8080/v1/", "http://127.0.0.1:8080/v1", True),
        ("http://[::1]:8080", "http://127.0.0.1:8080", True),
        ("http://box/v1", "http://box:80/v1", True),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1", False),
        ("https://127.0.0.1:8080", "http://127.0.0.1:8080", False),
        ("http://box:x", "http://box", False),
        ("", "http://box", False),
    ],
)
def test_which_addresses_lead_to_the_same_server(one, other, same):
    assert same_server(one, other) == same


def test_the_facts_never_show_the_key():
    assert KEY not in repr(replace(FACTS, key=KEY))
