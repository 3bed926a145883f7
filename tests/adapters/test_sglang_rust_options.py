"""The adapter for SGLang's compiled core, as far as it goes without that core."""

from pathlib import Path

import pytest

from hicache_ref.adapters import sglang_rust
from hicache_ref.adapters.sglang_rust import core_file, make
from hicache_ref.adapters.sglang_rust.following import DESCRIPTION, PROFILE, expect_followable
from hicache_ref.vocabulary.adapter import AdapterError
from hicache_ref.vocabulary.profile import profile_named


def test_unknown_options_name_the_known_ones() -> None:
    """Goal: a typing slip is one line. Method: an option and a plant that are none, and a file that is not there."""
    with pytest.raises(AdapterError, match="unknown option 'plants' of sglang-rust, expected one of core, plant"):
        make({"plants": "x"}, False)
    with pytest.raises(AdapterError, match="unknown plant 'x', expected one of commit-dropped, ack-never-sent"):
        make({"plant": "x"}, False)
    with pytest.raises(AdapterError, match=r"no file absent\.so"):
        make({"core": "absent.so"}, False)


def test_a_file_that_is_no_core_is_an_adapter_error(tmp_path: Path) -> None:
    """Goal: a wrong file is the user's mistake. Method: describe an adapter over a text file."""
    pytest.importorskip("torch")
    file = tmp_path / "mem_cache.so"
    file.write_text("prose")
    with make({"core": str(file)}, False) as adapter, pytest.raises(AdapterError, match=r"cannot load .*mem_cache\.so"):
        adapter.describe()


def test_another_python_or_machine_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nobody downloads what cannot run. Method: a machine that the wheel is not for."""
    monkeypatch.setattr(sglang_rust.platform, "machine", lambda: "riscv64")
    with pytest.raises(AdapterError, match=r"runs on CPython 3\.11 on linux x86_64, this is .* riscv64"):
        core_file(fetch=True)


def test_a_silent_profile_is_refused() -> None:
    """Goal: no switch is silently ignored. Method: a profile of the core whose events are off."""
    silent = profile_named(PROFILE).model_copy(update={"events": False})
    with pytest.raises(AdapterError, match="events is False, expected True"):
        expect_followable(silent, DESCRIPTION)
