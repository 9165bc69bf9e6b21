"""The unit files: what they say, how they are put on a machine, and that nobody's changes are lost."""

from __future__ import annotations

import difflib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lcpd import units
from lcpd.paths import systemd_files
from lcpd.units import LISTEN, UNITS, File, Machine

SOURCE = systemd_files()
HOME = Path("/home/ann/.config")
PROGRAM = ("/opt/lcpd/bin/lcpd",)


def rendered(user: bool = False, program: tuple[str, ...] = PROGRAM, version: int | None = 252) -> dict[str, File]:
    files = units.files(Machine(user, program, version), SOURCE, HOME, LISTEN)
    return {str(file.path): file for file in files}


def system(name: str, **terms: object) -> str:
    return rendered(**terms)[f"/etc/systemd/system/{name}"].text  # type: ignore[arg-type]


# ---- what is installed ---------------------------------------------------------------------------------------


def test_the_systems_files_are_units_a_user_and_folders() -> None:
    assert list(rendered()) == [
        *(f"/etc/systemd/system/{name}" for name in UNITS),
        "/etc/sysusers.d/lcpd.conf",
        "/etc/tmpfiles.d/lcpd.conf",
    ]


def test_a_users_files_are_units_only() -> None:
    assert list(rendered(user=True)) == [f"{HOME}/systemd/user/{name}" for name in UNITS]


@pytest.mark.parametrize("user", [False, True])
def test_uninstalling_knows_the_paths_of_all_that_is_installed(user: bool) -> None:
    assert list(map(str, units.paths(user, HOME))) == list(rendered(user=user))


def test_every_service_starts_the_lcpd_that_installs_it() -> None:
    for user in (False, True):
        for path, file in rendered(user).items():
            if path.endswith(".service"):
                assert "\nExecStart=/opt/lcpd/bin/lcpd serve\n" in file.text


def test_a_path_is_written_so_that_systemd_reads_it_as_it_is() -> None:
    program = ("/opt/my lcpd/100%/bin/python", "-m", "lcpd")
    assert '\nExecStart="/opt/my lcpd/100%%/bin/python" -m lcpd serve\n' in system("lcpd.service", program=program)


def test_the_socket_listens_where_it_is_told() -> None:
    files = units.files(Machine(False, PROGRAM, 252), SOURCE, HOME, "[::1]:9000")
    (socket,) = [file.text for file in files if file.path.name == "lcpd.socket"]
    assert re.findall("(?m)^ListenStream=.*", socket) == ["ListenStream=[::1]:9000"]


@pytest.mark.parametrize(("version", "there"), [(252, False), (253, False), (254, True), (257, True), (None, True)])
def test_keys_that_this_systemd_does_not_know_are_left_out(version: int | None, there: bool) -> None:
    assert ("FileDescriptorStorePreserve=yes" in system("lcpd.service", version=version)) is there


@pytest.mark.parametrize("listen", ["127.0.0.1:8080", "8080", "[::]:80", "localhost:1", "/run/lcpd/a.sock"])
def test_addresses_of_all_kinds_are_fine(listen: str) -> None:
    assert units.check_listen(listen) is None


@pytest.mark.parametrize("listen", ["", "localhost", "1 2:3", "/run/a b", "8080\nExecStart=x", "/run/%i", "relative/x"])
def test_what_is_no_address_is_refused(listen: str) -> None:
    assert units.check_listen(listen)


@pytest.mark.parametrize(("name", "fine"), [("coder", True), ("a.b-c_1", True), ("..", False), ("a/b", False), ("", 0)])
def test_names_of_instances_are_plain(name: str, fine: bool) -> None:
    assert (units.check_instance(name) is None) == bool(fine)


def test_what_a_system_service_cannot_reach_is_told() -> None:
    paths = [Path("/home/ann/venv"), Path("/opt/lcpd"), Path("/root/x"), Path("/homes"), Path("/tmp/venv")]
    assert units.out_of_sight(paths) == [Path("/home/ann/venv"), Path("/root/x"), Path("/tmp/venv")]


# ---- what the files say --------------------------------------------------------------------------------------


def keys(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize(
    ("folder", "different"),
    [
        (
            SOURCE,
            {"Description", "Wants", "Environment", "CacheDirectory", "LoadCredential"},
        ),
        (SOURCE / "user", {"Description", "Wants", "Environment"}),
    ],
    ids=["system", "user"],
)
def test_an_instance_differs_only_in_its_name_its_settings_its_keys_and_its_cache(
    folder: Path, different: set[str]
) -> None:
    lines = difflib.ndiff(keys(folder / "lcpd.service"), keys(folder / "lcpd@.service"))
    changed = {line[2:].partition("=")[0] for line in lines if line[0] in "+-"}
    assert changed == different


def test_the_names_of_the_credentials_are_those_that_the_settings_know() -> None:
    from lcpd.config.loader import CREDENTIALS

    for unit in ("lcpd.service", "lcpd@.service"):
        names = re.findall(r"(?m)^LoadCredential=([^:\n]+)", (SOURCE / unit).read_text())
        assert names == list(CREDENTIALS.values())


# ---- what systemd says about them ----------------------------------------------------------------------------

needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The system's units in a folder, as for the systemd of this machine, with a program that exists."""
    said = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True).stdout
    version = int(said.split()[1])
    for file in units.files(Machine(False, ("/bin/true",), version), SOURCE, HOME, LISTEN):
        if file.path.suffix != ".conf":
            units.put(tmp_path / file.path.name, file.text)
    return tmp_path


@needs_analyze
def test_systemd_finds_nothing_wrong_with_them(written: Path) -> None:
    command = ["systemd-analyze", "verify", *(str(written / name) for name in UNITS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_analyze
@pytest.mark.parametrize("name", ["lcpd.service", "lcpd@.service"])
def test_systemd_finds_their_exposure_low(written: Path, name: str) -> None:
    command = ["systemd-analyze", "security", "--offline=true", str(written / name)]
    said = subprocess.run(command, capture_output=True, text=True).stdout
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert found, said
    assert float(found[1]) <= 3.0


# ---- files on the disk ---------------------------------------------------------------------------------------


def test_a_file_is_ours_as_long_as_nobody_changes_it(tmp_path: Path) -> None:
    path = tmp_path / "unit"
    assert units.put(path, "[Service]\n") is None
    assert units.is_ours(path.read_bytes())
    assert path.read_text().endswith("\n[Service]\n")
    path.write_text(path.read_text() + "Nice=5\n")
    assert not units.is_ours(path.read_bytes())


@pytest.mark.parametrize("content", [b"", b"[Service]\n", b"\xff\xfe", b"# Written by `lcpd systemd install`\n"])
def test_anything_else_is_not_ours(content: bytes) -> None:
    assert not units.is_ours(content)


def test_an_unchanged_file_is_replaced_without_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "unit"
    units.put(path, "old\n")
    assert units.put(path, "new\n") is None
    assert [each.name for each in tmp_path.iterdir()] == ["unit"]


def test_what_somebody_changed_is_kept_each_time(tmp_path: Path) -> None:
    path = tmp_path / "lcpd.service"
    for number in (1, 2):
        path.write_text(f"theirs {number}\n")
        kept = units.put(path, "ours\n")
        assert kept == tmp_path / f"lcpd.service.before-lcpd-{number}"
        assert kept.read_text() == f"theirs {number}\n"
    assert units.is_ours(path.read_bytes())


def test_a_link_is_kept_as_a_link_and_what_it_leads_to_not_touched(tmp_path: Path) -> None:
    target, path = tmp_path / "target", tmp_path / "lcpd.service"
    target.write_text("theirs\n")
    path.symlink_to(target)
    kept = units.put(path, "ours\n")
    assert kept is not None
    assert kept.is_symlink()
    assert target.read_text() == "theirs\n"


def test_removing_takes_only_what_is_ours(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    units.put(ours, "x\n")
    theirs.write_text("x\n")
    assert units.take_away(ours) is True
    assert units.take_away(theirs) is False
    assert units.take_away(tmp_path / "none") is None
    assert [each.name for each in tmp_path.iterdir()] == ["theirs"]
