"""A folder as a store: one file an object, put in place whole, and checked when it is read.

A file is the object's bytes, from offset 0, and a seal of 32 bytes: what made the digest, length, digest. The digest
is salted with the key, so that a torn, cut, corrupt or misplaced file is a miss, never wrong bytes. A file gets its
name by a hard link, which fails if the name is taken: the first put wins, whole.

Folders of files are not split up: with 60,000 files on ext4 a second level made opening twice as slow.
"""

import errno
import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from hicache_ref.storage.base import Buffer, Handle, StorageError, expect_pairs, flat
from hicache_ref.storage.desk import Desk, remove_abandoned
from hicache_ref.vocabulary.base import Frozen

try:
    import xxhash
except ImportError:
    xxhash = None  # type: ignore[assignment]

Checksum = Literal["xxh3", "blake2b"]
Outcome = Literal["stored", "kept", "refused"]
"""What comes of a put, by the names that Stats has for it."""


class FilesOptions(Frozen):
    """How a folder is used as a store."""

    fsync: bool = False
    """Whether a put returns only when the disk has it: it then survives the machine, not only the process."""

    checksum: Checksum | None = None
    """What seals the files; None: xxh3 if the package xxhash is there, else blake2b, with reads 4 times as slow."""

    format: Literal["sealed", "sglang"] = "sealed"
    """`sglang`: files have no seal, as those of SGLang's file backend (`sglang_keys`). Damage then goes unnoticed."""


_SEAL = struct.Struct("<7sBQ16s")
_MAGIC = b"hicache"
_is_plain = re.compile(r"[A-Za-z0-9_.-]{1,200}").fullmatch
_NAME_MAX = 200
_SUFFIXES = (".bin", ".long")
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}
_READ = os.O_RDONLY | os.O_CLOEXEC
_MAY_BE_GONE = suppress(FileNotFoundError)


def _bytes_of(key: str) -> bytes:
    return key.encode(errors="surrogatepass")


def _xxh3(page: Buffer, key: str) -> bytes:
    return xxhash.xxh3_128_digest(page, xxhash.xxh3_64_intdigest(_bytes_of(key)))


def _blake2b(page: Buffer, key: str) -> bytes:
    return blake2b(page, digest_size=16, key=sha256(_bytes_of(key)).digest()).digest()


_CODES: dict[Checksum, int] = {"xxh3": 1, "blake2b": 2}
_DIGESTS: dict[int, Callable[[Buffer, str], bytes]] = {2: _blake2b} if xxhash is None else {1: _xxh3, 2: _blake2b}


class FilesBackend(Handle):
    """The folder `root` as a store; it is made if it is not there. Raises StorageError where it cannot be."""

    def __init__(self, root: str | Path, options: FilesOptions | None = None) -> None:
        super().__init__()
        options = options or FilesOptions()
        self._root = os.path.abspath(root)
        self._fsync = options.fsync
        self._sealed = options.format == "sealed"
        self._code = _CODES[options.checksum or ("blake2b" if xxhash is None else "xxh3")]
        if self._code not in _DIGESTS:
            raise StorageError("checksum xxh3, expected the package xxhash to be installed: hicache-ref[files]")
        self._desk = Desk(os.path.join(self._root, ".writers"))
        try:
            os.makedirs(self._root, exist_ok=True)
        except OSError as error:
            raise self._failed(error) from error
        remove_abandoned(self._desk.room)

    def exists(self, keys: Sequence[str]) -> int:
        """How many of `keys` have a file, from the first on."""
        self.expect_open()
        for count, key in enumerate(keys):
            if not os.access(self._path(key), os.F_OK):
                return count
        return len(keys)

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        """For each key whether its buffer holds the object, whole and unharmed.

        A file that is provably damaged is removed, so that the next put heals it.
        """
        self.expect_open()
        expect_pairs(keys, into)
        read_one = self._read_sealed if self._sealed else self._read_plain
        seal = bytearray(_SEAL.size + 1)
        found = [read_one(key, view, seal) for key, view in zip(keys, into, strict=True)]
        bad = () if None not in found else [key for key, hit in zip(keys, found, strict=True) if hit is None]
        hits = [hit is True for hit in found]
        self._count_reads(hits, into, damaged=sum(map(self._is_removed, bad)))
        return hits

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        """For each key whether it has a file now; false where there is no room for one.

        Raises StorageError if the folder fails in any other way; the objects before that are there.
        """
        self.expect_open()
        expect_pairs(keys, pages)
        try:
            came = [self._write_one(key, page) for key, page in zip(keys, pages, strict=True)]
            if self._fsync:
                _sync_folder(self._root)
        except OSError as error:
            raise self._failed(error) from error
        written = sum(page.nbytes for page, what in zip(pages, came, strict=True) if what == "stored")
        self.tally.add(**Counter[str](came), bytes_written=written)
        return [what != "refused" for what in came]

    def clear(self) -> None:
        """No object that was there is left; files that are no objects stay."""
        self.expect_open()
        with os.scandir(self._root) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIXES):
                    with _MAY_BE_GONE:
                        os.unlink(entry.path)

    def _let_go(self) -> None:
        self._desk.clear_away()

    def _failed(self, error: OSError) -> StorageError:
        return StorageError(f"{self._root}: {error.strerror}, expected a folder that can be written to")

    def _path(self, key: str) -> str:
        """The file of an object. What could mean something else in a path is escaped; other keys, other names."""
        if _is_plain(key):
            return f"{self._root}/{key}.bin"
        name = quote(_bytes_of(key), safe="")
        if 0 < len(name) <= _NAME_MAX:
            return f"{self._root}/{name}.bin"
        return f"{self._root}/{name[:100]}~{sha256(_bytes_of(key)).hexdigest()}.long"

    def _read_sealed(self, key: str, view: Buffer, seal: bytearray) -> bool | None:
        """Whether the buffer holds the object; None where there is a file that does not give it.

        The seal's buffer is one byte too long, so that a longer file shows by the count of bytes read.
        """
        size = view.nbytes
        whole = size + _SEAL.size
        try:
            descriptor = os.open(self._path(key), _READ)
            try:
                got = os.readv(descriptor, (view, seal))
                if got != whole:
                    got = _read_on(descriptor, got, view, seal)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return False
        except OSError:
            return None
        magic, code, length, digest = _SEAL.unpack_from(seal)
        if got != whole or magic != _MAGIC or length != size or code not in _DIGESTS:
            return None
        return _DIGESTS[code](view, key) == digest or None

    def _read_plain(self, key: str, view: Buffer, beyond: bytearray) -> bool | None:
        """Whether the buffer holds the file, which has as many bytes."""
        try:
            descriptor = os.open(self._path(key), _READ)
            try:
                return os.readv(descriptor, (view, beyond)) == view.nbytes
            finally:
                os.close(descriptor)
        except OSError:
            return False

    def _is_removed(self, key: str) -> bool:
        """Whether the file was damaged, and so is gone now. Whole ones stay: they have another length, or digest."""
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                data = memoryview(file.read())
                number = os.fstat(file.fileno()).st_ino
            if _is_whole(data, key) or os.stat(path).st_ino != number:
                return False
            os.unlink(path)
        except OSError:
            return False
        return True

    def _write_one(self, key: str, page: Buffer) -> Outcome:
        """What came of the put. Raises OSError."""
        path = self._path(key)
        if os.access(path, os.F_OK):
            return "kept"
        seal = _SEAL.pack(_MAGIC, self._code, page.nbytes, _DIGESTS[self._code](page, key)) if self._sealed else b""
        draft, descriptor = self._desk.draft()
        try:
            try:
                _write_all(descriptor, page, seal)
                if self._fsync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            return "stored" if _named(draft, path) else "kept"
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            return "refused"
        finally:
            with _MAY_BE_GONE:
                os.unlink(draft)


def _named(draft: str, path: str) -> bool:
    """Whether the draft got the name; false if another file has it. Raises OSError."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Where there are no hard links, two writers at the same moment may replace each other, each whole.
        os.rename(draft, path)
    return True


def _is_whole(data: Buffer, key: str) -> bool:
    """Whether the file is one that this, or an installation with more digests, could read."""
    if len(data) < _SEAL.size:
        return False
    magic, code, length, digest = _SEAL.unpack_from(data, len(data) - _SEAL.size)
    if magic != _MAGIC or length != len(data) - _SEAL.size:
        return False
    return code not in _DIGESTS or _DIGESTS[code](data[:length], key) == digest


def _read_on(descriptor: int, got: int, view: Buffer, seal: bytearray) -> int:
    """The bytes read in all, once a read gives no more: large ones come in pieces. Raises OSError."""
    whole, rest = flat(view), memoryview(seal)
    while got < len(whole) + _SEAL.size:
        more = os.preadv(descriptor, (whole[got:], rest[max(0, got - len(whole)) :]), got)
        if not more:
            break
        got += more
    return got


def _write_all(descriptor: int, page: Buffer, seal: bytes) -> None:
    """Page and seal are in the file: large ones go in pieces. Raises OSError."""
    done, size = os.writev(descriptor, (page, seal)), page.nbytes
    while done < size + len(seal):
        done += os.writev(descriptor, (flat(page)[done:], seal[max(0, done - size) :]))


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
