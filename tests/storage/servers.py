"""Servers that tests start on loopback, and end; and what is said where one cannot be had."""

import importlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

_START_SECONDS = 20.0
_MOONCAKE = "mooncake-transfer-engine-non-cuda"


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[str]:
    """The URL of a Redis server that keeps nothing."""
    program = shutil.which("redis-server")
    need(program is not None and find_spec("redis") is not None, "redis-server (and redis)", "the Redis store")
    port = _free_port()
    words = [str(program), "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", *options]
    with _running(words, folder, port):
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def mooncake_master(folder: Path, *options: str) -> Iterator[str]:
    """The URL of a Mooncake master that gives up soon on those who are gone."""
    need(_has_mooncake(), f"{_MOONCAKE} with libibverbs1, librdmacm1 and libnuma1", "the Mooncake store")
    package = importlib.import_module("mooncake").__path__[0]
    port, metrics = _free_port(), _free_port()
    words = [
        f"{package}/mooncake_master",
        "--rpc_address=127.0.0.1", f"--rpc_port={port}", "--metrics_host=127.0.0.1", f"--metrics_port={metrics}",
        "--rpc_thread_num=2", "--client_ttl=2",
        "--put_start_discard_timeout_sec=2", "--put_start_release_timeout_sec=6", *options,
    ]  # fmt: skip
    with _running(words, folder, port):
        yield f"mooncake://127.0.0.1:{port}?segment_mib=64"


def need(there: bool, package: str, unproved: str) -> None:
    """The package is there; else the test is skipped, and on CI, which installs it, fails."""
    if there:
        return
    text = f"{package} is not installed: {unproved} stays unproved"
    if os.environ.get("CI") == "true":
        pytest.fail(text)
    pytest.skip(text)


def _has_mooncake() -> bool:
    try:
        importlib.import_module("mooncake.store")
    except ImportError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _running(words: Sequence[str], folder: Path, port: int) -> Iterator[None]:
    """The server answers on its port; afterwards it is gone."""
    log = folder / "server.log"
    with log.open("wb") as out, subprocess.Popen(words, stdout=out, stderr=out, stdin=subprocess.DEVNULL) as server:
        try:
            give_up = time.monotonic() + _START_SECONDS
            while not _answers(port):
                if server.poll() is not None or time.monotonic() > give_up:
                    pytest.fail(f"{words[0]} does not answer: {log.read_text(errors='replace')[-500:]}")
                time.sleep(0.05)
            yield
        finally:
            server.terminate()
            server.wait(10)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
    except OSError:
        return False
    return True
