"""An implementation in this process: any object with methods named like operations becomes an adapter.

class MyCache:
    def reset(self, profile): ...
    def match_prefix(self, key): return {"kind": "matched", ...}
    def insert(self, rid, key, start, inserted, chunked, priority): ...
    def observe(self, level): return {"level": "tree", ...}

adapter = InProcess(MyCache(), Description(name="mine", version="1", level="tree"))
"""

from typing import Any

from pydantic import ValidationError

from hicache_ref.adapters.failures import ImplementationFailed
from hicache_ref.search.finding import line_raised
from hicache_ref.vocabulary.adapter import AdapterError, Description
from hicache_ref.vocabulary.observation import OBSERVATION, Level, Observation
from hicache_ref.vocabulary.operations import SPECIAL_FIELDS, Operation
from hicache_ref.vocabulary.outcomes import OUTCOME, Outcome
from hicache_ref.vocabulary.profile import Profile

_OTHER_NAMES = {"reset": "clear"}


class InProcess:
    """An Adapter over an object: an operation is a call of the method of its name, its fields keyword arguments.

    The operation `reset` is `clear()`, for `reset(profile)` is the verb that makes all new. A method returns an
    Outcome, or a dict with `kind` and the outcome's fields; `observe` an Observation or a dict. Operations without a
    method are taken out of the description.
    """

    def __init__(self, implementation: object, description: Description) -> None:
        self.implementation = implementation
        has = frozenset(name for name in description.operations if callable(self._method(name)))
        self._description = description.model_copy(update={"operations": has})

    def describe(self) -> Description:
        """Says what this is, without the operations that it lacks."""
        return self._description

    def reset(self, profile: Profile) -> None:
        """The object's `reset(profile)` has returned. Raises AdapterError if there is none or it raises."""
        reset = getattr(self.implementation, "reset", None)
        if not callable(reset):
            raise AdapterError(f"{self._name()} has no method reset(profile), expected one")
        try:
            reset(profile)
        except AdapterError:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error} ({line_raised(error)})"
            raise AdapterError(f"{self._name()}.reset raised {said}") from error

    def apply(self, operation: Operation) -> Outcome:
        """The method has returned this. Raises ImplementationFailed for no outcome, and what the method raises."""
        method = self._method(operation.op)
        fields = {name: getattr(operation, name) for name in type(operation).model_fields if name != "op"}
        for special in SPECIAL_FIELDS.get(operation.op, ()):
            if fields[special] == type(operation).model_fields[special].default:
                del fields[special]  # an object that knows no states, or no ranks, need not know of it
        returned = method(**fields)
        try:
            return OUTCOME.validate_python(returned)
        except ValidationError as error:
            raise self._malformed(operation.op, "an outcome", returned, error) from error

    def observe(self, level: Level) -> Observation:
        """What the object's `observe(level)` returned. Raises AdapterError if there is none."""
        method = getattr(self.implementation, "observe", None)
        if not callable(method):
            raise AdapterError(f"{self._name()} has no method observe(level), expected one: nothing can be compared")
        returned = method(level)
        try:
            return OBSERVATION.validate_python(returned)
        except ValidationError as error:
            raise self._malformed("observe", "an observation", returned, error) from error

    def _method(self, operation: str) -> Any:
        return getattr(self.implementation, _OTHER_NAMES.get(operation, operation), None)

    def _name(self) -> str:
        return type(self.implementation).__name__

    def _malformed(self, method: str, what: str, returned: object, error: ValidationError) -> ImplementationFailed:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        why = f"{where}: {first['msg']}" if where else first["msg"]
        return ImplementationFailed(
            f"{self._name()}.{method} returned something else than {what}: {why}", raw=repr(returned)
        )
