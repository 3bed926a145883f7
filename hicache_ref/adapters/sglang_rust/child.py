"""The process that holds the core: `python -m hicache_ref.adapters.sglang_rust.child CORE [PLANT]` answers lines."""

import sys
from pathlib import Path
from typing import Any

from hicache_ref.adapters.serving import serve
from hicache_ref.adapters.sglang_rust.core import Core, load_bindings
from hicache_ref.adapters.sglang_rust.following import DESCRIPTION, expect_followable
from hicache_ref.adapters.sglang_rust.observe import ObservedCaller
from hicache_ref.adapters.sglang_rust.plants import PLANTS
from hicache_ref.vocabulary.adapter import AdapterError, Description
from hicache_ref.vocabulary.observation import Level, Observation
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import Profile


class TreeCoreAdapter:
    """An Adapter over a core in this process. A panic spoils a core for good, so every reset makes a new one."""

    def __init__(self, bindings: Any, kind: type[ObservedCaller], description: Description) -> None:
        self._bindings = bindings
        self._kind = kind
        self._description = description
        self._caller: ObservedCaller | None = None

    def describe(self) -> Description:
        """Says what this is."""
        return self._description

    def reset(self, profile: Profile) -> None:
        """Core and caller are new. Raises AdapterError where the core cannot follow `profile`."""
        expect_followable(profile, self._description)
        self._caller = self._kind(Core(self._bindings, profile))

    def apply(self, operation: Operation) -> Outcome:
        """The operation has happened. Raises what the core raises, a panic too."""
        return self.current().apply(operation)

    def observe(self, level: Level) -> Observation:
        """What can be seen now."""
        return self.current().observe(level)

    def current(self) -> ObservedCaller:
        """The caller since the last reset. Raises AdapterError before the first."""
        if self._caller is None:
            raise AdapterError("no core yet, expected a reset first")
        return self._caller


class SglangRust(TreeCoreAdapter):
    """The compiled core of full attention alone."""

    def __init__(self, core_file: Path, kind: type[ObservedCaller] = ObservedCaller) -> None:
        """Raises AdapterError where `core_file` cannot be loaded."""
        super().__init__(load_bindings(core_file), kind, DESCRIPTION)


def main(arguments: list[str]) -> None:
    """Standard input has been served to its end."""
    core_file, *plant = arguments
    serve(SglangRust(Path(core_file), PLANTS[plant[0]] if plant else ObservedCaller))


if __name__ == "__main__":
    main(sys.argv[1:])
