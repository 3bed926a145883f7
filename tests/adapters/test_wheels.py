"""Pinned wheels: what is in the cache is what was pinned, and nothing is downloaded unasked."""

import hashlib
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hicache_ref.adapters import wheels
from hicache_ref.adapters.wheels import cache_folder, fetched_wheel
from hicache_ref.vocabulary.adapter import AdapterError

MEMBER = "toy/core.so"


class Index:
    """Stands in for pip: it hands out one small wheel, and counts how often."""

    def __init__(self, file: Path) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(MEMBER, "compiled")
            archive.writestr("toy/other.py", "not wanted")
        self.content = file.read_bytes()
        self.sha256 = hashlib.sha256(self.content).hexdigest()
        self.downloads = 0

    def download(self, package: str, version: str, folder: Path) -> Path:
        """The wheel is in `folder`."""
        self.downloads += 1
        file = folder / f"{package}-{version}-py3-none-any.whl"
        file.write_bytes(self.content)
        return file

    def fetched(self, *, fetch: bool = True, member: str = MEMBER) -> Path:
        """The wheel's folder, as its adapter asks for it."""
        return fetched_wheel("toy", "1.0", {self.sha256}, [member], fetch=fetch)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """An empty cache and an index with one wheel."""
    monkeypatch.setenv("HICACHE_REF_CACHE", str(tmp_path / "cache"))
    index = Index(tmp_path / "toy.whl")
    monkeypatch.setattr(wheels, "_downloaded", index.download)
    return index


def left_in_cache() -> list[str]:
    """Everything below the cache folder, by name."""
    return sorted(str(path.relative_to(cache_folder())) for path in cache_folder().rglob("*"))


def test_nothing_is_downloaded_unasked(index: Index) -> None:
    """Goal: no network without --fetch. Method: an empty cache."""
    with pytest.raises(AdapterError, match=r"wheel toy 1\.0 is not in .*: give --fetch once"):
        index.fetched(fetch=False)
    assert index.downloads == 0


def test_without_network_the_message_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nobody looks for a wheel that exists. Method: pip itself, whose only index is a port where nobody listens.

    Pip's last words are then that there is no such distribution.
    """
    monkeypatch.setenv("HICACHE_REF_CACHE", str(tmp_path / "cache"))
    for name, value in (("INDEX_URL", "http://127.0.0.1:9/simple"), ("RETRIES", "1"), ("CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)

    with pytest.raises(AdapterError, match=r"no network: .* toy 1\.0 \(Connection refused\), expected a"):
        fetched_wheel("toy", "1.0", {"0" * 64}, [MEMBER], fetch=True)
    assert ["wheels"] == left_in_cache()


def test_only_the_wanted_members_are_kept_and_used_again(index: Index) -> None:
    """Goal: one download, of one file. Method: fetch, then ask without and with permission."""
    folder = index.fetched()
    assert (folder / MEMBER).read_text() == "compiled"
    assert folder == index.fetched(fetch=False) == index.fetched()
    assert index.downloads == 1
    stem = "wheels/toy-1.0"
    assert ["wheels", stem, f"{stem}/stamp.json", f"{stem}/toy", f"{stem}/toy/core.so"] == left_in_cache()


def test_another_wheel_than_the_pinned_one_is_not_kept(index: Index) -> None:
    """Goal: nobody runs what was not pinned. Method: pin another digest."""
    with pytest.raises(AdapterError, match=f"has SHA-256 {index.sha256}, expected {'0' * 64}"):
        fetched_wheel("toy", "1.0", {"0" * 64}, [MEMBER], fetch=True)
    assert ["wheels"] == left_in_cache()


def test_a_member_that_is_missing_is_named(index: Index) -> None:
    """Goal: one line instead of a KeyError. Method: ask for a file that the wheel lacks."""
    with pytest.raises(AdapterError, match=r"toy-1\.0-py3-none-any\.whl has no member toy/absent\.so"):
        index.fetched(member="toy/absent.so")
    assert ["wheels"] == left_in_cache()


def test_what_changed_in_the_cache_is_not_used(index: Index) -> None:
    """Goal: a damaged file is found before it is loaded. Method: change it, ask without and with permission."""
    folder = index.fetched()
    (folder / MEMBER).write_text("changed")
    with pytest.raises(AdapterError, match="is damaged in"):
        index.fetched(fetch=False)
    assert (index.fetched() / MEMBER).read_text() == "compiled"
    assert index.downloads == 2


def test_a_cache_made_for_another_pin_is_not_used(index: Index, tmp_path: Path) -> None:
    """Goal: moving the pin downloads anew. Method: the cache holds the wheel of an older digest."""
    index.fetched()
    with pytest.raises(AdapterError, match="is damaged in"):
        fetched_wheel("toy", "1.0", {"0" * 64}, [MEMBER], fetch=False)


def test_fetching_at_once_is_safe(index: Index) -> None:
    """Goal: two test processes may start together. Method: eight threads, then the cache holds one whole copy."""
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: index.fetched(), range(8)))
    assert {cache_folder() / "wheels" / "toy-1.0"} == folders
    assert (folders.pop() / MEMBER).read_text() == "compiled"
    assert [] == [name for name in left_in_cache() if ".fetch-" in name]


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the usual places, and one of our own. Method: each variable in turn."""
    monkeypatch.setenv("HICACHE_REF_CACHE", "/own")
    assert Path("/own") == cache_folder()
    monkeypatch.delenv("HICACHE_REF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared-by-all")
    assert Path("/shared-by-all/hicache-ref") == cache_folder()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/user")
    assert Path("/home/user/.cache/hicache-ref") == cache_folder()


def test_what_pip_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a missing network reads as one line. Method: pip itself, told to look nowhere."""
    monkeypatch.setenv("HICACHE_REF_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(AdapterError, match=r"pip did not download no-such-toy 1\.0.*No matching distribution"):
        fetched_wheel("no-such-toy", "1.0", {"0" * 64}, [MEMBER], fetch=True)
