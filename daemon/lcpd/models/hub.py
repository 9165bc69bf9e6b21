"""Downloading models from the Hugging Face hub: continued where it broke off, checked, shown.

huggingface_hub keeps no part of a download that failed, so the part files are ours; the requests, their
retries and their errors are its.  Files are read over plain HTTP, which a part file can continue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import httpx2
from huggingface_hub import HfApi, constants, get_token, hf_hub_url
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils.tqdm import disable_progress_bars

from lcpd.models.files import PullError, exclusive, finish, need_space, part_of, sha256_of
from lcpd.models.reference import Hub
from lcpd.models.variants import QuantError, choose

Progress = Callable[[str, int, int], None]
"""Called with a file's name, its bytes that are here, and its size in bytes."""


@dataclass(frozen=True)
class HubFile:
    """One file of a repository at one commit."""

    path: str
    size: int
    sha256: str
    url: str


@dataclass(frozen=True)
class HubClient:
    """Which hub, and who asks.  ``None`` leaves it to huggingface_hub (HF_ENDPOINT, HF_TOKEN, a login)."""

    endpoint: str | None = None
    token: str | None = None


def pull_hub(reference: Hub, folder: Path, client: HubClient, progress: Progress) -> Path:
    """Download the model of ``reference`` into ``folder`` and return its (first) file.

    A download that broke off is continued (all but its last 10 MB at most); files that are there already are
    checked, not fetched.  Raises ``PullError``; the part file then stays for the next try, unless its content
    was wrong.
    """
    try:
        files = list_files(reference, client)
        with exclusive(folder):
            for file in files:
                _fetch(file, folder / file.path, client, progress)
    except GatedRepoError:
        raise PullError(
            f"{reference}: access is restricted; accept the terms on the model's page and set HF_TOKEN"
        ) from None
    except RepositoryNotFoundError:
        raise PullError(f"{reference}: there is no such repository, or it is private (then set HF_TOKEN)") from None
    except HfHubHTTPError as error:
        raise PullError(f"{reference}: the hub answered: {str(error).splitlines()[0]}") from None
    except (httpx2.HTTPError, OSError) as error:
        raise PullError(
            f"{reference}: the download failed: {error or type(error).__name__}; run the same command again,"
            " it continues where it stopped"
        ) from None
    return folder / files[0].path


def list_files(reference: Hub, client: HubClient) -> list[HubFile]:
    """The files of the model at the newest commit.  Raises ``PullError`` and huggingface_hub's errors."""
    api = HfApi(endpoint=client.endpoint, token=client.token)
    repository = f"{reference.owner}/{reference.repo}"
    commit = api.model_info(repository).sha
    tree = api.list_repo_tree(repository, recursive=True, revision=commit)
    entries = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
    try:
        variant = choose(entries, reference.quant)
    except QuantError as error:
        raise PullError(f"{reference}: {error}") from None
    files = []
    for path in variant.files:
        lfs = entries[path].lfs
        if lfs is None:
            raise PullError(f"{reference}: the hub has no SHA-256 for {path}, so it cannot be checked")
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise PullError(f"{reference}: refusing the file name {path!r}: it leads out of its folder")
        if lfs.size > constants.MAX_HTTP_DOWNLOAD_SIZE:
            raise PullError(
                f"{reference}: {path} is larger than the hub serves over HTTP; get it with `hf download`"
                " and give its path instead"
            )
        url = hf_hub_url(repository, path, revision=commit, endpoint=client.endpoint)
        files.append(HubFile(path, lfs.size, lfs.sha256, url))
    return files


def _fetch(file: HubFile, target: Path, client: HubClient, progress: Progress) -> None:
    """Make ``target`` the content of ``file``."""
    name = target.name
    if target.is_file() and sha256_of(target) == file.sha256:
        progress(name, file.size, file.size)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(target, file.sha256)
    token = client.token or get_token()
    with part.open("ab") as output:
        have = output.tell()
        if have > file.size:
            output.truncate(0)
            have = 0
        need_space(target.parent, file.size - have)
        progress(name, have, file.size)
        watched = cast(BinaryIO, _Watched(output, lambda here: progress(name, here, file.size)))
        disable_progress_bars("huggingface_hub.http_get")
        http_get(
            file.url,
            watched,
            resume_size=have,
            headers={"authorization": f"Bearer {token}"} if token else {},
            expected_size=file.size,
            displayed_filename=name,
        )
    finish(target, file.sha256)


class _Watched:
    """The parts of a file that ``http_get`` uses, reporting the position after each write."""

    def __init__(self, file: BinaryIO, report: Callable[[int], None]) -> None:
        self._file = file
        self._report = report
        self.seek = file.seek
        self.tell = file.tell
        self.truncate = file.truncate

    def write(self, data: bytes) -> int:
        written = self._file.write(data)
        self._report(self._file.tell())
        return written
