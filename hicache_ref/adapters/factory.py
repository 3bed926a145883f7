"""The process of an adapter named `pkg:factory`: `python -m hicache_ref.adapters.factory pkg:factory OPTIONS`."""

import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module

from pydantic import ValidationError

from hicache_ref.adapters.serving import serve
from hicache_ref.jsonlines import complaint
from hicache_ref.vocabulary.adapter import Adapter, AdapterError, Description
from hicache_ref.vocabulary.observation import OBSERVATION, Level, Observation
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import OUTCOME, Outcome
from hicache_ref.vocabulary.profile import Profile


def make(target: str, options: Mapping[str, str]) -> Adapter:
    """What the factory returned, called with the options as keywords. Raises AdapterError."""
    module, _, name = target.partition(":")
    try:
        factory = import_module(module)
        for part in name.split("."):
            factory = getattr(factory, part)
    except Exception as error:
        raise AdapterError(f"cannot import {target!r}: {_said(error)}, expected pkg:factory") from error
    if not callable(factory):
        raise AdapterError(f"{target!r} is a {type(factory).__name__}, expected a function or class")
    try:
        made: Adapter = factory(**options)
    except AdapterError:
        raise
    except Exception as error:
        given = ", ".join(options) or "none"
        said = _said(error) if isinstance(error, ValidationError) else f"{_said(error)}, expected an adapter"
        raise AdapterError(f"{target}, called with options {given}: {said}") from error
    for verb in ("describe", "reset", "apply", "observe"):
        if not callable(getattr(made, verb, None)):
            raise AdapterError(f"{target} made a {type(made).__name__} without {verb}, expected an adapter")
    return made


class Made:
    """The adapter, made when it is first asked for anything, so that a failure to make it is an answer."""

    def __init__(self, target: str, options: Mapping[str, str]) -> None:
        self.target = target
        self.options = options
        self.adapter: Adapter | None = None

    def _made(self) -> Adapter:
        if self.adapter is None:
            self.adapter = make(self.target, self.options)
        return self.adapter

    def describe(self) -> Description:
        """As the adapter says. Raises AdapterError where that is no description."""
        try:
            said = self._made().describe()
        except ValidationError as error:
            raise AdapterError(f"{self.target}: describe made no description: {_said(error)}") from None
        if not isinstance(said, Description):
            raise AdapterError(f"{self.target}: describe returned a {type(said).__name__}, expected a Description")
        return said

    def reset(self, profile: Profile) -> None:
        """As the adapter does."""
        self._made().reset(profile)

    def apply(self, operation: Operation) -> Outcome:
        """As the adapter answers, an outcome or its fields. Raises TypeError for anything else."""
        said = self._made().apply(operation)
        try:
            return OUTCOME.validate_python(said)
        except ValidationError:
            raise TypeError(f"apply returned {said!r:.200}, expected an outcome") from None

    def observe(self, level: Level) -> Observation:
        """As the adapter shows, an observation or its fields. Raises TypeError for anything else."""
        said = self._made().observe(level)
        try:
            return OBSERVATION.validate_python(said)
        except ValidationError:
            raise TypeError(f"observe returned {said!r:.200}, expected an observation") from None


def _said(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return f"{error.title}: {complaint(error)}"
    return f"{type(error).__name__}: {error}".splitlines()[0]


def main(arguments: list[str]) -> None:
    """Standard input has been served to its end by the adapter that the arguments name."""
    target, options = arguments
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    serve(Made(target, json.loads(options)))


if __name__ == "__main__":
    main(sys.argv[1:])
