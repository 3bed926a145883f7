"""The process that holds the caches: `python -m hicache_ref.adapters.sglang_hiradix.child SETUP` answers lines.

SETUP is a JSON object with the fields of `Setup`.
"""

import logging
import runpy
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hicache_ref.adapters.serving import serve
from hicache_ref.adapters.sglang_hiradix import importing, substitutes
from hicache_ref.adapters.sglang_hiradix.engine import Clock, Engine
from hicache_ref.adapters.sglang_hiradix.fitting import fit, set_batch
from hicache_ref.adapters.sglang_hiradix.following import describe, expect_followable
from hicache_ref.adapters.sglang_hiradix.observe import ObservedCaller
from hicache_ref.adapters.sglang_hiradix.pages import Stamps
from hicache_ref.adapters.sglang_hiradix.setup import Setup
from hicache_ref.adapters.sglang_hiradix.stepper import StepThread
from hicache_ref.adapters.sglang_hiradix.traits import Traits
from hicache_ref.vocabulary.adapter import AdapterError, Description
from hicache_ref.vocabulary.observation import Level, Observation
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import Profile

_MEMORY_FOLDER = Path("/dev/shm")


class SglangHiRadix:
    """An Adapter over the caches of one source tree; every reset makes a new one."""

    traits_kind: type[Traits] = Traits
    engine_kind: type[Engine] = Engine
    caller_kind: Callable[[Any, Stamps], ObservedCaller] = ObservedCaller
    real = importing.REAL

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._traits: Traits | None = None
        self._clock = Clock()
        self._stamps = Stamps(1)
        self._caller: ObservedCaller | None = None
        self._folder = tempfile.mkdtemp(dir=_MEMORY_FOLDER if _MEMORY_FOLDER.is_dir() else None, prefix="hicache-ref-")
        self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def traits(self) -> Traits:
        """The tree's, its modules imported and fitted. Raises AdapterError where one cannot be imported."""
        if self._traits is None:
            setup = self.setup
            # Copies of a few pages gain nothing from threads, and the other process wants the cores.
            torch.set_num_threads(1)
            substitutes.replace_cuda()
            substitutes.replace_numpy()
            importing.import_from(
                Path(setup.root), substitutes.GIVEN, substitutes.THIRD_PARTY, real=self.real,
                files={name: Path(file) for name, file in setup.files.items()},
            )  # fmt: skip
            logging.disable(logging.CRITICAL)
            try:
                traits = self.traits_kind.read()
            except (ImportError, AttributeError, TypeError, NameError, SyntaxError) as error:
                raise AdapterError(f"cannot import {self.traits_kind.NAME} from {setup.root}: {error}") from error
            self.fit(traits)
            if setup.preload is not None:
                runpy.run_path(setup.preload)
            self._traits = traits
        return self._traits

    def fit(self, traits: Any) -> None:
        """The modules are changed as far as they have to be."""
        fit(traits, self._clock, self._put_missing)

    def _put_missing(self, backend: Any, digest: str) -> None:
        """Storage has the page, as if somebody else had put it there."""
        page = self._stamps.flat_page(digest, self.current().engine.host.get_dummy_flat_data_page())
        backend.set(digest, page)

    def _publishes(self) -> bool:
        return self.traits().publishes_tiers if self.setup.events is None else self.setup.events

    def describe(self) -> Description:
        """Says what this is. Raises AdapterError where the tree has no cache that can be driven."""
        traits = self.traits()
        version = self.setup.version or f"{self.setup.root} ({traits.described()})"
        return self.described(traits, version).model_copy(update={"changed": self.setup.changed})

    def described(self, traits: Any, version: str) -> Description:
        """What these caches are and have."""
        setup = self.setup
        return describe(traits, version, storage=setup.storage, events=self._publishes(), pinned=setup.is_pinned)

    def expect_followable(self, profile: Profile) -> None:
        """The profile asks for nothing but what these caches do. Raises AdapterError."""
        expect_followable(profile, self.traits())

    def reset(self, profile: Profile) -> None:
        """The cache is new, storage empty. Raises AdapterError where it cannot follow `profile`."""
        traits = self.traits()
        self.expect_followable(profile)
        if self.setup.batch is not None:
            sizes = profile.sizes.model_copy(update={"storage_batch": self.setup.batch})
            profile = profile.model_copy(update={"sizes": sizes})
        set_batch(traits, profile.sizes.storage_batch)
        StepThread.give_up_all()
        for file in Path(self._folder).iterdir():
            file.unlink()
        self._stamps = Stamps(profile.sizes.page_size)
        engine = self.engine_kind(traits, profile, self._folder, self._clock, events=self._publishes())
        engine.make(None)
        self._caller = self.caller_kind(engine, self._stamps)

    def apply(self, operation: Operation) -> Outcome:
        """The operation has happened. Raises what the cache raises."""
        return self.current().apply(operation)

    def observe(self, level: Level) -> Observation:
        """What can be seen now."""
        return self.current().observe(level)

    def current(self) -> ObservedCaller:
        """The caller since the last reset. Raises AdapterError before the first."""
        if self._caller is None:
            raise AdapterError("no cache yet, expected a reset first")
        return self._caller

    def close(self) -> None:
        """Nothing of it is left on disk."""
        StepThread.give_up_all()
        self._remove()


def main(arguments: list[str], kind: type[SglangHiRadix] = SglangHiRadix) -> None:
    """Standard input has been served to its end."""
    adapter = kind(Setup.model_validate_json(arguments[0]))
    try:
        serve(adapter)
    finally:
        adapter.close()


if __name__ == "__main__":
    main(sys.argv[1:])
