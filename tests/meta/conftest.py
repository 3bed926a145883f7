"""Fixtures of the tests of the command line."""

from pathlib import Path

import pytest

from tests.meta.shell import Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Commands run in an empty folder, which is where adapters are imported from too."""
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capsys)
