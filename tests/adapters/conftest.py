"""The released core, for the tests that are marked `peers`."""

import os
from pathlib import Path

import pytest

from hicache_ref.adapters.sglang_rust import core_file
from hicache_ref.vocabulary.adapter import AdapterError


@pytest.fixture(scope="session")
def sglang_core() -> Path:
    """SGLang's compiled core from the cache. Where it is not there, one line says how to get it."""
    try:
        return core_file(fetch=False)
    except AdapterError as error:
        text = f"{error}; `make test-peers` does. Without it nothing here checks a released engine."
    if os.environ.get("CI") == "true":
        pytest.fail(text, pytrace=False)
    pytest.skip(text)
