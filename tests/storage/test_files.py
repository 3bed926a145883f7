"""The files store: whole pages or misses, whatever happened to the files."""

import errno
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_ref.storage import files
from hicache_ref.storage.base import StorageError
from hicache_ref.storage.config import StorageConfig, sglang_file_name, sglang_keys
from hicache_ref.storage.files import FilesBackend, FilesOptions
from hicache_ref.storage.speed import files_against_plain
from tests.storage.pages import get, put
from tests.storage.servers import need

PAGE = Random(0).randbytes(4096)
KEY = "ab" * 32 + "_model_0_1_0123456789abcdef"


def object_file(folder: Path) -> Path:
    """The one object that is stored there."""
    [path] = [path for path in folder.iterdir() if path.is_file()]
    return path


DAMAGE: dict[str, Any] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[:1000],
    "cut by a byte": lambda data: data[:-1],
    "seal only": lambda data: data[-32:],
    "no seal": lambda data: data[:-32],
    "longer": lambda data: data + b"\0",
    "a bit": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "the last byte": lambda data: data[: len(PAGE) - 1] + b"\0" + data[len(PAGE) :],
    "zeros": lambda data: bytes(len(data)),
    "the digest": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "the length": lambda data: data[:-24] + struct.pack("<Q", 17) + data[-16:],
    "two halves": lambda data: data[:2048] + data[:2048] + data[4096:],
}


@pytest.mark.parametrize("checksum", ["xxh3", "blake2b"])
@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_file_is_a_miss_and_heals(tmp_path: Path, what: str, checksum: files.Checksum) -> None:
    """Goal: HC-STORE-24, never wrong bytes. Method: each kind of damage; then the key is put again."""
    need(checksum != "xxh3" or files.xxhash is not None, "xxhash", "the faster seal")
    backend = FilesBackend(tmp_path, FilesOptions(checksum=checksum))
    put(backend, {KEY: PAGE})
    path = object_file(tmp_path)
    path.write_bytes(DAMAGE[what](path.read_bytes()))

    assert [None] == get(backend, [KEY], len(PAGE))
    assert (1, 1) == (backend.stats().misses, backend.stats().damaged)
    assert not path.exists()
    assert [True] == put(backend, {KEY: PAGE})
    assert [PAGE] == get(backend, [KEY], len(PAGE))


@given(st.integers(0, len(PAGE) + 31), st.integers(1, 255))
def test_no_single_byte_goes_unnoticed(tmp_path_factory: pytest.TempPathFactory, place: int, change: int) -> None:
    """Goal: the seal covers all. Method: one byte anywhere in the file, seal included, is another one."""
    folder = tmp_path_factory.mktemp("store")
    backend = FilesBackend(folder)
    put(backend, {KEY: PAGE})
    data = bytearray(object_file(folder).read_bytes())
    data[place] ^= change
    object_file(folder).write_bytes(data)

    assert [None] == get(backend, [KEY], len(PAGE))


def test_a_misplaced_file_is_a_miss(tmp_path: Path) -> None:
    """Goal: an object under another's name is not taken for it. Method: a whole file, copied to another key."""
    backend = FilesBackend(tmp_path)
    put(backend, {"a": PAGE})
    (tmp_path / "b.bin").write_bytes((tmp_path / "a.bin").read_bytes())

    assert [PAGE, None] == get(backend, ["a", "b"], len(PAGE))


def test_a_file_of_another_length_is_left_alone(tmp_path: Path) -> None:
    """Goal: a wrong configuration destroys nothing. Method: reads into other sizes, then the right one."""
    backend = FilesBackend(tmp_path)
    put(backend, {KEY: PAGE})

    assert [[None]] * 3 == [get(backend, [KEY], size) for size in (0, 100, 2 * len(PAGE))]
    assert [PAGE] == get(backend, [KEY], len(PAGE))
    assert 0 == backend.stats().damaged


def test_what_this_installation_cannot_check_is_a_miss_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no bytes unchecked, none destroyed. Method: a file sealed with xxh3, read where xxhash is not installed."""
    need(files.xxhash is not None, "xxhash", "what is done with seals that cannot be checked")
    put(FilesBackend(tmp_path, FilesOptions(checksum="xxh3")), {KEY: PAGE})
    with monkeypatch.context() as without:
        without.setattr(files, "xxhash", None)
        without.delitem(files._DIGESTS, 1)
        poorer = FilesBackend(tmp_path)
        assert [None] == get(poorer, [KEY], len(PAGE))
        assert [True] == put(poorer, {"other": PAGE})
        with pytest.raises(StorageError, match=r"expected the package xxhash to be installed: hicache-ref\[files\]"):
            FilesBackend(tmp_path, FilesOptions(checksum="xxh3"))

    assert [PAGE, PAGE] == get(FilesBackend(tmp_path), [KEY, "other"], len(PAGE))


def test_nothing_lies_outside_of_the_folder(tmp_path: Path) -> None:
    """Goal: a key is no path. Method: keys that would lead out of the folder, or into the writers' one."""
    folder = tmp_path / "store"
    backend = FilesBackend(folder)
    keys = ["../up", "/etc/passwd", ".", "..", "", ".writers", ".writers/x", "a/../../b", "\0", "\ud800", "k" * 5000]
    put(backend, {key: key.encode(errors="surrogatepass") + PAGE for key in keys})

    assert {"store"} == {path.name for path in tmp_path.iterdir()}
    assert len(keys) == len([path for path in folder.iterdir() if path.is_file()])
    for key in keys:
        page = key.encode(errors="surrogatepass") + PAGE
        assert [page] == get(backend, [key], len(page))


LEFT_BEHIND = """
import os, sys
from hicache_ref.storage.files import FilesBackend
backend = FilesBackend(sys.argv[1])
path, descriptor = backend._desk.draft()
os.write(descriptor, b"half a page")
print(path, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    """Goal: no leftovers grow. Method: a draft of a living process stays, that of a killed one does not."""
    command = [sys.executable, "-c", LEFT_BEHIND, str(tmp_path)]
    root = str(Path(files.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as writer:
        assert writer.stdout is not None
        draft = Path(writer.stdout.readline().strip())
        FilesBackend(tmp_path)
        assert draft.exists()
        writer.kill()
    FilesBackend(tmp_path)

    assert [] == list((tmp_path / ".writers").iterdir())


def test_a_closed_store_leaves_nothing_behind(tmp_path: Path) -> None:
    """Goal: a clean end. Method: a put, a close, and what lies there; then a desk that somebody took away."""
    backend = FilesBackend(tmp_path)
    put(backend, {KEY: PAGE})
    [desk] = (tmp_path / ".writers").iterdir()
    desk.rmdir()
    assert [True] == put(backend, {"other": PAGE})
    backend.close()

    assert [] == list((tmp_path / ".writers").iterdir())
    assert [PAGE, PAGE] == get(FilesBackend(tmp_path), [KEY, "other"], len(PAGE))


def test_a_full_disk_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no room is an answer, and leaves nothing behind. Method: the second of three writes finds it full."""
    backend = FilesBackend(tmp_path)
    calls = iter([0, errno.ENOSPC, 0])
    honest = os.writev

    def writev(descriptor: int, parts: Any) -> int:
        if code := next(calls):
            raise OSError(code, os.strerror(code))
        return honest(descriptor, parts)

    monkeypatch.setattr(os, "writev", writev)
    assert [True, False, True] == put(backend, {"a": PAGE, "b": PAGE, "c": PAGE})
    assert (2, 1) == (backend.stats().stored, backend.stats().refused)
    assert 1 == backend.exists(["a", "b", "c"])
    [desk] = (tmp_path / ".writers").iterdir()
    assert [] == list(desk.iterdir())


def test_a_folder_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: one line with folder and cause. Method: a disk that answers with an input/output error."""
    backend = FilesBackend(tmp_path)

    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "writev", fail)
    with pytest.raises(StorageError, match=f"{tmp_path}: Input/output error, expected a folder"):
        put(backend, {KEY: PAGE})


def test_without_hard_links_pages_are_still_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: file systems without links work. Method: links that are refused; the page is renamed into place."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    backend = FilesBackend(tmp_path)

    assert [True] == put(backend, {KEY: PAGE})
    assert [PAGE] == get(backend, [KEY], len(PAGE))


def test_large_pages_go_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a system call that moves less than asked loses nothing. Method: calls that move 1,000 bytes at most."""
    honest = {name: getattr(os, name) for name in ("readv", "preadv", "writev")}

    def shortened(buffers: Any) -> list[Any]:
        """The first thousand bytes of the buffers."""
        left, short = 1000, []
        for each in buffers:
            short.append(memoryview(each)[:left])
            left -= len(short[-1])
        return [each for each in short if len(each)]

    monkeypatch.setattr(os, "readv", lambda file, buffers: honest["readv"](file, shortened(buffers)))
    monkeypatch.setattr(os, "preadv", lambda file, buffers, at: honest["preadv"](file, shortened(buffers), at))
    monkeypatch.setattr(os, "writev", lambda file, buffers: honest["writev"](file, shortened(buffers)))
    backend = FilesBackend(tmp_path)

    assert [True] == put(backend, {KEY: PAGE})
    assert [PAGE] == get(backend, [KEY], len(PAGE))
    assert [None] == get(backend, [KEY], len(PAGE) - 1)


def test_fsync_reaches_file_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: with fsync a put is on the disk. Method: what is synchronised in a put of two, with it and without."""
    synced: list[bool] = []
    honest = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.path.isdir(f"/proc/self/fd/{descriptor}"))
        honest(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    put(FilesBackend(tmp_path / "plain"), {"a": PAGE, "b": PAGE})
    put(FilesBackend(tmp_path / "safe", FilesOptions(fsync=True)), {"a": PAGE, "b": PAGE})

    assert [False, False, True] == synced


def test_files_of_sglang_are_read_and_written(tmp_path: Path) -> None:
    """Goal: one folder for both. Method: a file as SGLang leaves it, and one of ours, found under its name."""
    config = StorageConfig(model_name="org/model", page_size=16)
    theirs, ours = "12" * 32, "34" * 32
    (tmp_path / sglang_file_name(config, theirs)).write_bytes(PAGE)
    backend = FilesBackend(tmp_path, FilesOptions(format="sglang"))
    put(backend, {sglang_keys(config, ours)[0]: PAGE})

    assert [PAGE] == get(backend, sglang_keys(config, theirs), len(PAGE))
    assert PAGE == (tmp_path / sglang_file_name(config, ours)).read_bytes()
    assert [[None]] * 2 == [get(backend, sglang_keys(config, theirs), size) for size in (100, 2 * len(PAGE))]


def test_clear_leaves_what_is_not_ours(tmp_path: Path) -> None:
    """Goal: a folder that holds more loses nothing else. Method: a file of somebody's, before and after."""
    (tmp_path / "README.md").write_text("keep")
    backend = FilesBackend(tmp_path)
    put(backend, {KEY: PAGE, "k" * 500: PAGE})
    backend.clear()

    assert ["README.md"] == [path.name for path in tmp_path.iterdir() if path.is_file()]


@pytest.mark.long
def test_files_are_nearly_as_fast_as_plain_loops(tmp_path: Path) -> None:
    """Goal: checked pages cost little: at least 0.85 of a loop that checks nothing. Method: the best of three tries."""
    need(files.xxhash is not None, "xxhash", "the speed of checked files")
    tries = []
    for _ in range(3):
        tries.append([row.ratio for row in files_against_plain(tmp_path, rounds=5)])
        if min(tries[-1]) >= 0.85:
            break
        time.sleep(1)

    assert 0.85 <= max(map(min, tries)), tries
