"""The settings as text: the example, the schema, and the effective values with their origins."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lcpd.config import Settings, load, render
from lcpd.config.describe import allowed, schema_of
from lcpd.config.loader import FLAGS
from lcpd.config.settings import leaves, value_of

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LCPD_HOME", str(tmp_path / "home"))


def test_the_example_file_is_the_one_that_lcpd_prints() -> None:
    assert (ROOT / "config" / "lcpd.toml").read_text() == render.example(), "lcpd config example > config/lcpd.toml"


def test_the_schema_file_is_the_one_that_lcpd_prints() -> None:
    text = (ROOT / "config" / "lcpd.schema.json").read_text()
    assert text == render.schema_text(), "lcpd config schema > config/lcpd.schema.json"


def test_the_example_file_changes_nothing() -> None:
    loaded = load(ROOT / "config" / "lcpd.toml", {}, {})
    assert loaded.settings == Settings()


def test_the_example_with_every_comment_taken_away_has_every_key_with_its_default(tmp_path: Path) -> None:
    file = tmp_path / "all.toml"
    file.write_text(re.sub(r"(?m)^#(?! )", "", render.example()))
    loaded = load(file, {}, {})
    assert {name for name, origin in loaded.origins.items() if origin != "default"} == set(leaves())
    defaults = Settings()
    for name in leaves():
        default = value_of(defaults, name)
        assert default is None or value_of(loaded.settings, name) == default


def test_every_setting_is_described_and_every_number_is_bounded() -> None:
    for name, field in leaves().items():
        assert field.description, name
        assert allowed(name), name
        part = schema_of(name)
        if part.get("type") in ("integer", "number"):
            assert "minimum" in part or "exclusiveMinimum" in part, name
            assert "maximum" in part, name


def test_every_flag_sets_a_setting() -> None:
    assert set(FLAGS) <= set(leaves())


def test_the_shown_values_carry_their_origins(tmp_path: Path) -> None:
    file = tmp_path / "lcpd.toml"
    file.write_text("[cache]\nram = 1048576\n")
    text = render.show(load(file, {"model.kv": "q8_0"}, {"LCPD_LOG__LEVEL": "debug"}))
    lines = [re.sub(r"\s+#", " #", line) for line in text.splitlines()]
    assert f'ram = "1MiB" # file {file}' in lines
    assert 'kv = "q8_0" # flag --kv' in lines
    assert 'level = "debug" # environment LCPD_LOG__LEVEL' in lines
    assert "port = 8080 # default" in lines
    assert "# alias is not set # default" in lines


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(alias=st.text(min_size=1), ram=st.integers(0, 2**63 - 1), split=st.lists(st.floats(0, 1e300), max_size=3))
def test_the_shown_values_read_back_as_the_same_settings(
    tmp_path: Path, alias: str, ram: int, split: list[float]
) -> None:
    file = tmp_path / "shown.toml"
    loaded = load(None, {"model.alias": alias, "cache.ram": ram}, {})
    model = loaded.settings.model.model_copy(update={"tensor_split": tuple(split)})
    expected = loaded.settings.model_copy(update={"model": model})
    file.write_text(render.show(type(loaded)(expected, loaded.origins)), encoding="utf-8")
    assert load(file, {}, {}).settings == expected


def test_the_json_has_value_and_origin_of_every_setting() -> None:
    document = json.loads(render.show_json(load(None, {"cache.ram": "1KiB"}, {})))
    assert set(document) == set(leaves())
    assert document["cache.ram"] == {"value": 1024, "origin": "flag --cache-ram"}
    assert document["cache.dir"] == {"value": None, "origin": "default"}


def test_the_example_is_toml_with_the_sections_in_order() -> None:
    assert list(tomllib.loads(render.example())) == list(Settings.model_fields)
