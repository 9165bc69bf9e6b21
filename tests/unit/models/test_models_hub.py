"""Downloads from the hub: the right files, continued, checked, and with clear errors."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import COMMIT, REPOSITORY, FakeHub, serving

from lcpd.models.files import PullError, exclusive, part_of, sha256_of
from lcpd.models.hub import HubClient, list_files, pull_hub
from lcpd.models.reference import Hub

CONTENT = bytes(range(256)) * 1000
Q4 = Hub("maker", "model-GGUF", "Q4_K_M")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    # The library waits a second before it continues a broken download.
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    # It writes in chunks of 10 MB, and loses a chunk that is not complete; the files here are small.
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    files = {
        "README.md": b"a model",
        "model-Q4_K_M.gguf": CONTENT,
        "model-Q8_0.gguf": CONTENT[::-1],
        "BF16/model-BF16-00001-of-00002.gguf": b"first" * 99,
        "BF16/model-BF16-00002-of-00002.gguf": b"second" * 99,
        "mmproj-F16.gguf": b"a projector",
    }
    with serving(FakeHub(files)) as running:
        yield running


def pull(
    hub: FakeHub, folder: Path, reference: Hub = Q4, token: str | None = None
) -> tuple[Path, list[tuple[str, int, int]]]:
    steps: list[tuple[str, int, int]] = []
    path = pull_hub(reference, folder, HubClient(hub.endpoint, token), lambda *step: steps.append(step))
    return path, steps


def part_files(folder: Path) -> list[Path]:
    return list(folder.rglob("*.part"))


def test_the_file_of_the_quant_is_downloaded_and_nothing_else(hub: FakeHub, tmp_path: Path) -> None:
    path, _ = pull(hub, tmp_path)
    assert path == tmp_path / "model-Q4_K_M.gguf"
    assert path.read_bytes() == CONTENT
    assert [each.name for each in tmp_path.iterdir() if each.name != ".lock"] == [path.name]


def test_all_parts_of_a_split_model_are_downloaded_into_their_folder(hub: FakeHub, tmp_path: Path) -> None:
    path, _ = pull(hub, tmp_path, Hub("maker", "model-GGUF", "bf16"))
    assert path == tmp_path / "BF16" / "model-BF16-00001-of-00002.gguf"
    assert (tmp_path / "BF16" / "model-BF16-00002-of-00002.gguf").read_bytes() == b"second" * 99


def test_every_file_is_asked_for_at_one_commit(hub: FakeHub) -> None:
    files = list_files(Q4, HubClient(hub.endpoint))
    assert [file.url for file in files] == [f"{hub.endpoint}/{REPOSITORY}/resolve/{COMMIT}/model-Q4_K_M.gguf"]


def test_progress_ends_at_the_size_of_the_file(hub: FakeHub, tmp_path: Path) -> None:
    _, steps = pull(hub, tmp_path)
    assert steps[0] == ("model-Q4_K_M.gguf", 0, len(CONTENT))
    assert steps[-1] == ("model-Q4_K_M.gguf", len(CONTENT), len(CONTENT))
    assert [here for _, here, _ in steps] == sorted(here for _, here, _ in steps)


def test_a_file_that_is_there_is_not_downloaded_again(hub: FakeHub, tmp_path: Path) -> None:
    pull(hub, tmp_path)
    hub.asked.clear()
    path, steps = pull(hub, tmp_path)
    assert hub.asked == []
    assert steps == [("model-Q4_K_M.gguf", len(CONTENT), len(CONTENT))]
    assert path.read_bytes() == CONTENT


def test_a_damaged_file_is_downloaded_again(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "model-Q4_K_M.gguf").write_bytes(b"x" * len(CONTENT))
    path, _ = pull(hub, tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_cut_connection_is_continued_where_it_was_cut(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts = [100_000, 50_000]
    path, _ = pull(hub, tmp_path)
    assert path.read_bytes() == CONTENT
    assert [asked.range for asked in hub.asked] == [None, "bytes=100000-", "bytes=150000-"]


def test_a_failed_download_is_continued_by_the_next_pull(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts, hub.failures = [100_000], [500]
    with pytest.raises(PullError, match="the hub answered"):
        pull(hub, tmp_path)
    assert not (tmp_path / "model-Q4_K_M.gguf").exists()
    assert [part.stat().st_size for part in part_files(tmp_path)] == [100_000]
    hub.asked.clear()

    path, steps = pull(hub, tmp_path)
    assert path.read_bytes() == CONTENT
    assert [asked.range for asked in hub.asked] == ["bytes=100000-"]
    assert steps[0] == ("model-Q4_K_M.gguf", 100_000, len(CONTENT))
    assert part_files(tmp_path) == []


def test_a_part_with_every_byte_is_checked_without_asking_for_more(hub: FakeHub, tmp_path: Path) -> None:
    target = tmp_path / "model-Q4_K_M.gguf"
    sha256 = list_files(Q4, HubClient(hub.endpoint))[0].sha256
    part_of(target, sha256).write_bytes(CONTENT)
    assert pull(hub, tmp_path)[0].read_bytes() == CONTENT
    assert hub.asked == []


def test_a_part_that_is_too_long_is_started_again(hub: FakeHub, tmp_path: Path) -> None:
    target = tmp_path / "model-Q4_K_M.gguf"
    sha256 = list_files(Q4, HubClient(hub.endpoint))[0].sha256
    part_of(target, sha256).write_bytes(CONTENT + b"more")
    assert pull(hub, tmp_path)[0].read_bytes() == CONTENT


def test_a_server_that_ignores_ranges_sends_it_all_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts, hub.ignore_ranges = [100_000], True
    assert pull(hub, tmp_path)[0].read_bytes() == CONTENT


def test_the_part_of_another_version_is_not_continued(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts, hub.failures = [100_000], [500]
    with pytest.raises(PullError):
        pull(hub, tmp_path)
    hub.files["model-Q4_K_M.gguf"] = CONTENT[::-1]
    assert pull(hub, tmp_path)[0].read_bytes() == CONTENT[::-1]
    assert part_files(tmp_path) == []


def test_wrong_content_is_refused_and_not_kept(hub: FakeHub, tmp_path: Path) -> None:
    hub.wrong_content = {"model-Q4_K_M.gguf"}
    with pytest.raises(PullError, match="the checksum is wrong"):
        pull(hub, tmp_path)
    assert list(tmp_path.rglob("*.gguf*")) == []


def test_a_file_without_a_checksum_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    hub.without_lfs = {"model-Q4_K_M.gguf"}
    with pytest.raises(PullError, match="no SHA-256"):
        pull(hub, tmp_path)


def test_a_file_name_that_leads_out_of_the_folder_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    hub.files = {"../../evil-Q4_K_M.gguf": CONTENT}
    with pytest.raises(PullError, match="leads out of its folder"):
        pull(hub, tmp_path)


def test_an_unknown_repository_is_named(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(PullError, match="hf:maker/nothing: there is no such repository, or it is private"):
        pull(hub, tmp_path, Hub("maker", "nothing", None))


def test_an_unknown_quant_lists_those_that_exist(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(PullError, match=r"no model 'Q2_K'; there are: BF16, Q4_K_M, Q8_0"):
        pull(hub, tmp_path, Hub("maker", "model-GGUF", "Q2_K"))


def test_a_gated_repository_says_what_to_do(hub: FakeHub, tmp_path: Path) -> None:
    hub.gated = True
    with pytest.raises(PullError, match="accept the terms on the model's page and set HF_TOKEN"):
        pull(hub, tmp_path)


def test_the_token_opens_a_gated_repository_and_stays_with_the_hub(hub: FakeHub, tmp_path: Path) -> None:
    hub.gated = True
    assert pull(hub, tmp_path, token="secret")[0].read_bytes() == CONTENT
    assert [(asked.host.split(":")[0], asked.authorization) for asked in hub.asked] == [("localhost", None)]


def test_a_hub_out_of_reach_is_named(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(PullError, match=r"the download failed: .*run the same command again"):
            pull_hub(Q4, tmp_path, HubClient(endpoint), lambda *step: None)


def test_two_pulls_into_one_folder_exclude_each_other(hub: FakeHub, tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(PullError, match="another lcpd pull is at work"):
        pull(hub, tmp_path)
    assert sha256_of(pull(hub, tmp_path)[0])


def test_a_full_disk_is_noticed_before_the_download(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("lcpd.models.files.shutil.disk_usage", lambda path: usage)
    with pytest.raises(PullError, match="not enough disk space"):
        pull(hub, tmp_path)
    assert hub.asked == []
