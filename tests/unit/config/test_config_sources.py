"""Settings come from the defaults, the file, the environment and flags; each beats the one before."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcpd.config import ConfigError, Settings, load


@pytest.fixture(autouse=True)
def _empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LCPD_HOME", str(tmp_path / "home"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some.toml"


def problems(file: Path | None = None, environ: dict[str, str] | None = None, **flags: object) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(file, {name.replace("__", "."): value for name, value in flags.items()}, environ or {})
    return caught.value.problems


def test_without_any_source_everything_is_the_default() -> None:
    loaded = load(None, {}, {})
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}


def test_the_file_beats_the_default(file: Path) -> None:
    file.write_text("[model]\nctx = 1000\n")
    loaded = load(file, {}, {})
    assert loaded.settings.model.ctx == 1000
    assert loaded.origins["model.ctx"] == f"file {file}"
    assert loaded.origins["model.slots"] == "default"


def test_keys_that_systemd_passes_as_credentials_are_used(tmp_path: Path) -> None:
    (tmp_path / "lcpd.api-keys").write_text("secret")
    loaded = load(None, {}, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert loaded.settings.server.api_key_file == tmp_path / "lcpd.api-keys"
    assert loaded.origins["server.api_key_file"] == "credential lcpd.api-keys"
    assert loaded.settings.server.admin_key_file is None


def test_the_file_beats_a_credential(tmp_path: Path, file: Path) -> None:
    (tmp_path / "lcpd.admin-keys").write_text("secret")
    file.write_text('[server]\nadmin_key_file = "/etc/keys"\n')
    loaded = load(file, {}, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert loaded.settings.server.admin_key_file == Path("/etc/keys")


def test_the_environment_beats_the_file(file: Path) -> None:
    file.write_text("[model]\nctx = 1000\nslots = 2\n")
    loaded = load(file, {}, {"LCPD_MODEL__CTX": "2000"})
    assert (loaded.settings.model.ctx, loaded.settings.model.slots) == (2000, 2)
    assert loaded.origins["model.ctx"] == "environment LCPD_MODEL__CTX"


def test_a_flag_beats_the_environment(file: Path) -> None:
    file.write_text("[model]\nctx = 1000\n")
    loaded = load(file, {"model.ctx": 3000, "model.slots": None}, {"LCPD_MODEL__CTX": "2000"})
    assert loaded.settings.model.ctx == 3000
    assert loaded.origins["model.ctx"] == "flag --ctx"
    assert loaded.origins["model.slots"] == "default"


def test_the_usual_file_is_read_if_it_exists(tmp_path: Path) -> None:
    usual = tmp_path / "home" / "lcpd.toml"
    usual.parent.mkdir()
    usual.write_text("[server]\nport = 1\n")
    assert load(None, {}, {}).origins["server.port"] == f"file {usual}"


def test_the_named_file_is_read_instead_of_the_one_in_the_environment(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    file.write_text("[server]\nport = 1\n")
    other.write_text("[server]\nport = 2\n")
    environ = {"LCPD_CONFIG": str(other)}
    assert load(None, {}, environ).settings.server.port == 2
    assert load(file, {}, environ).settings.server.port == 1


def test_an_empty_variable_counts_as_not_set() -> None:
    loaded = load(None, {}, {"LCPD_MODEL__ALIAS": ""})
    assert loaded.settings.model.alias is None
    assert loaded.origins["model.alias"] == "default"


def test_text_from_the_environment_is_read_as_the_type_of_the_setting() -> None:
    environ = {
        "LCPD_SERVER__ALLOWED_HOSTS": "box, box.lan",
        "LCPD_SERVER__MAX_BODY": "1MiB",
        "LCPD_MODEL__TENSOR_SPLIT": "3,1",
        "LCPD_MODEL__MMAP": "false",
        "LCPD_MODEL__GPU_LAYERS": "12",
        "LCPD_CACHE__DIR": "~/prompts",
    }
    settings = load(None, {}, environ).settings
    assert settings.server.allowed_hosts == ("box", "box.lan")
    assert settings.server.max_body == 2**20
    assert settings.model.tensor_split == (3.0, 1.0)
    assert settings.model.mmap is False
    assert settings.model.gpu_layers == 12
    assert settings.cache.dir == Path.home() / "prompts"


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().model.ctx = 1


def test_a_named_file_that_is_not_there_is_an_error(file: Path) -> None:
    assert problems(file) == (f"{file}: cannot be read: No such file or directory",)


def test_a_broken_file_is_an_error_with_its_place(file: Path) -> None:
    file.write_text("[server]\nport = \n")
    (problem,) = problems(file)
    assert problem.startswith(f"{file}: is not valid TOML") and "line 2" in problem


def test_a_file_that_is_not_utf8_is_an_error(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    (problem,) = problems(file)
    assert problem.startswith(f"{file}: is not valid TOML")


def test_an_unknown_key_suggests_the_nearest_one(file: Path) -> None:
    file.write_text("[model]\n# slots\nslts = 4\n")
    assert problems(file) == (f"{file}:3: unknown key 'model.slts'; did you mean 'model.slots'?",)


def test_a_key_in_the_wrong_section_suggests_the_right_one(file: Path) -> None:
    file.write_text("[server]\nctx = 4\n")
    assert problems(file) == (f"{file}:2: unknown key 'server.ctx'; did you mean 'model.ctx'?",)


def test_a_key_outside_any_section_suggests_its_section(file: Path) -> None:
    file.write_text("port = 80\n")
    assert problems(file) == (f"{file}:1: unknown key 'port'; did you mean 'server.port'?",)


def test_an_unknown_section_suggests_the_nearest_one(file: Path) -> None:
    file.write_text("\n[modl]\nctx = 4\n")
    assert problems(file) == (f"{file}:2: unknown section 'modl'; did you mean 'model'?",)


def test_a_section_that_is_a_value_is_an_error(file: Path) -> None:
    file.write_text("model = 3\n")
    assert problems(file) == (f"{file}:1: model must be a section: [model]",)


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("LCPD_MODEL__SLOT", "LCPD_MODEL__SLOTS"),
        ("LCPD_PORT", "LCPD_SERVER__PORT"),
        ("LCPD_MODEL_CTX", "LCPD_MODEL__CTX"),
    ],
)
def test_an_unknown_variable_suggests_the_nearest_one(variable: str, nearest: str) -> None:
    expected = f"environment: unknown variable {variable}; did you mean {nearest!r}?"
    assert problems(environ={variable: "1"}) == (expected,)


def test_the_variables_for_folders_are_no_unknown_settings(tmp_path: Path) -> None:
    load(None, {}, {"LCPD_HOME": str(tmp_path), "LCPD_CONFIG": "", "PATH": "/bin"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("server.port = 70000", "server.port = 70000: must be a whole number from 0 to 65535"),
        ("server.port = true", "server.port = true: must not be true or false"),
        ("server.host = ''", "server.host = '': must be text, not empty"),
        ("metrics.traces = 'collector'", "metrics.traces = 'collector': must be text such as \"http://127.0.0.1:4318/"),
        ("server.max_body = '1 potato'", "server.max_body = '1 potato': must be a size such as"),
        ("server.max_body = 1", "server.max_body = 1: must be a size such as"),
        ("server.heartbeat_interval = nan", "server.heartbeat_interval = nan: must be a number of seconds above 0"),
        ("server.allowed_hosts = [1]", "server.allowed_hosts = 1: must be a list; each: text"),
        ("server.api_key_file = '~nobody-of-this-name/x'", "server.api_key_file = '~nobody-of-this-name/x': must be a"),
        ("model.slots = 65", "model.slots = 65: must be a whole number from 1 to 64"),
        ("model.kv = 'q3'", "model.kv = 'q3': must be one of f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0"),
        ("model.gpu_layers = 'some'", "model.gpu_layers = 'some': must be a whole number from 0 to 9999 or \"auto\""),
        ("model.mmap = 3", "model.mmap = 3: must be true or false"),
        ("model.tensor_split = [-1]", "model.tensor_split = -1: must be a list; each: a number from 0 up"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed_and_its_source(file: Path, line: str, message: str) -> None:
    name, _, value = line.partition(" = ")
    section, _, key = name.partition(".")
    file.write_text(f"[{section}]\n{key} = {value}\n")
    (problem,) = problems(file)
    assert problem.startswith(message)
    assert problem.endswith(f"(from file {file})")


def test_a_wrong_value_of_a_variable_or_flag_names_it() -> None:
    assert problems(environ={"LCPD_SERVER__PORT": "x"})[0].endswith("(from environment LCPD_SERVER__PORT)")
    assert problems(server__port="x")[0].endswith("(from flag --port)")
    with pytest.raises(ConfigError, match=r"from argument MODEL\)$"):
        load(None, {"model.ref": ""}, {}, {"model.ref": "MODEL"})


def test_all_problems_of_all_sources_are_reported_at_once(file: Path) -> None:
    file.write_text("[server]\nprt = 1\nport = -1\n")
    found = problems(file, {"LCPD_X": "1", "LCPD_MODEL__CTX": "-1"}, model__slots=0)
    assert len(found) == 5


def test_a_micro_batch_larger_than_the_batch_is_no_mistake() -> None:
    assert load(None, {"model.batch": 256}, {}).settings.model.ubatch == 512


def test_a_batch_too_small_for_the_slots_is_an_error() -> None:
    (problem,) = problems(model__batch=4, model__slots=8)
    assert problem.startswith("model.batch = 4: must be more than model.slots = 8")


def test_a_quantised_kv_cache_without_flash_attention_is_an_error() -> None:
    (problem,) = problems(model__kv="q8_0", model__flash_attn="off")
    assert problem.startswith("model.flash_attn = 'off': must not be off with model.kv = 'q8_0'")
    load(None, {"model.kv": "bf16", "model.flash_attn": "off"}, {})


def test_the_longest_restart_wait_is_not_shorter_than_the_first(file: Path) -> None:
    file.write_text("[engine]\nrestart_backoff = 60\n")
    (problem,) = problems(file)
    assert problem.startswith("engine.restart_backoff_max = 30.0: must not be less than engine.restart_backoff")
