"""Pinned wheels: members of a released package, in the user's cache and nowhere else. Nothing is installed."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path

from hicache_ref.vocabulary.adapter import AdapterError

_STAMP = "stamp.json"
_DOWNLOAD_SECONDS = 1800

_ERRNO = re.compile(r"\[Errno[^]]*\] ([^'\")]+)")
_ERROR = re.compile(r"\b(\w+Error)\b")


def cache_folder() -> Path:
    """Where this user's downloads are kept: $HICACHE_REF_CACHE, else below $XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("HICACHE_REF_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "hicache-ref"


def fetched_wheel(
    package: str, version: str, sha256s: Collection[str], members: Sequence[str], *, fetch: bool, part: str = ""
) -> Path:
    """A folder holds `members` of the wheel, as they are in a wheel whose SHA-256 is one of `sha256s`.

    `part` tells folders apart that hold different members of one wheel.
    It is downloaded by pip only if it is absent and `fetch` allows that; several processes may do so at once.
    Members found in the cache are compared with the digests taken when they were unpacked. Raises AdapterError.
    """
    wheels = cache_folder() / "wheels"
    folder = wheels / "-".join(filter(None, (package, version, part)))
    if _is_intact(folder, sha256s, members):
        return folder
    if not fetch:
        state = "damaged in" if folder.exists() else "not in"
        raise AdapterError(f"the wheel {package} {version} is {state} {wheels}, expected it there: give --fetch once")
    try:
        wheels.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=wheels, prefix=".fetch-") as scratch:
            wheel = _downloaded(package, version, Path(scratch))
            unpacked = _unpacked(wheel, sha256s, members, Path(scratch))
            _put_in_place(unpacked, folder, sha256s, members)
    except OSError as error:
        raise AdapterError(f"cannot keep the wheel {package} {version} in {wheels}: {error}") from error
    return folder


def _is_intact(folder: Path, sha256s: Collection[str], members: Sequence[str]) -> bool:
    """Whether the folder has the members of one of these wheels, unchanged since they were unpacked."""
    try:
        stamp = json.loads((folder / _STAMP).read_bytes())
        digests = stamp["members"]
        return stamp["wheel"] in sha256s and all(_sha256(folder / name) == digests[name] for name in members)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _downloaded(package: str, version: str, folder: Path) -> Path:
    """The wheel that pip chose for this Python and platform, in `folder`."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    command = [*pip, "--no-deps", "--only-binary", ":all:", "-d", str(folder), f"{package}=={version}"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DOWNLOAD_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise AdapterError(f"pip did not download {package} {version} within {_DOWNLOAD_SECONDS} s") from error
    found = sorted(folder.glob("*.whl"))
    if run.returncode and (trouble := _no_network(run.stderr)) is not None:
        raise AdapterError(
            f"no network: pip did not reach the package index for {package} {version} ({trouble}), "
            f"expected a connection, or the wheel's files in {cache_folder()}"
        )
    if run.returncode or len(found) != 1:
        said = (run.stderr.strip() or run.stdout.strip() or "nothing").splitlines()[-1]
        raise AdapterError(
            f"pip did not download {package} {version}, expected a wheel for this Python; it said: {said}"
        )
    return found[0]


def _no_network(stderr: str) -> str | None:
    """Why pip reached no index; None if it reached one. What pip says last is that there is no such package."""
    lost = [line for line in stderr.splitlines() if "connection broken by" in line or "Max retries exceeded" in line]
    if not lost:
        return None
    why = _ERRNO.search(lost[-1]) or _ERROR.search(lost[-1])
    return why[1] if why else "no connection"


def _unpacked(wheel: Path, sha256s: Collection[str], members: Sequence[str], scratch: Path) -> Path:
    """A folder with the members and a stamp of their digests."""
    digest = _sha256(wheel)
    if digest not in sha256s:
        expected = " or ".join(sorted(sha256s))
        raise AdapterError(f"{wheel.name} has SHA-256 {digest}, expected {expected}")
    folder = scratch / "unpacked"
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for name in members:
            try:
                archive.extract(name, folder)
            except KeyError as error:
                raise AdapterError(f"{wheel.name} has no member {name}, expected one") from error
    stamp = {"wheel": digest, "members": {name: _sha256(folder / name) for name in members}}
    (folder / _STAMP).write_text(json.dumps(stamp, indent=1))
    return folder


def _put_in_place(unpacked: Path, folder: Path, sha256s: Collection[str], members: Sequence[str]) -> None:
    """The folder is the one unpacked, or an equal one that another process put there first."""
    try:
        unpacked.rename(folder)
    except OSError:
        if _is_intact(folder, sha256s, members):
            return
        # Damaged: it goes into our scratch folder, which is removed with it.
        folder.rename(unpacked.with_name("damaged"))
        unpacked.rename(folder)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
