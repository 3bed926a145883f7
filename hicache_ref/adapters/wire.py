"""What an adapter in another process is asked and answers: one JSON object a line, each way.

A request is `{"id": 1, "verb": "apply", "op": {...}}`; verbs are `describe`, `reset` (with `profile`), `apply`
(with `op`) and `observe` (with `level`). A reply repeats the id and has either `result`, or `error` with the
text of what was raised, and beside it `line`, the file and line where, if there is one.
"""

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import Field, TypeAdapter

from hicache_ref.vocabulary.adapter import Description
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.observation import Level, Observation
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import Profile


class DescribeRequest(Frozen):
    """Asks for the `Description`."""

    id: int
    verb: Literal["describe"] = "describe"


class ResetRequest(Frozen):
    """Asks for a new implementation that follows `profile`; the result is empty."""

    id: int
    verb: Literal["reset"] = "reset"
    profile: Profile


class ApplyRequest(Frozen):
    """Asks for the operation; the result is its outcome."""

    id: int
    verb: Literal["apply"] = "apply"
    op: Operation


class ObserveRequest(Frozen):
    """Asks for an observation."""

    id: int
    verb: Literal["observe"] = "observe"
    level: Level


Request = Annotated[
    DescribeRequest | ResetRequest | ApplyRequest | ObserveRequest,
    Field(discriminator="verb"),
]

REQUEST: TypeAdapter[Request] = TypeAdapter(Request)

Result = TypeVar("Result")


class Reply(Frozen, Generic[Result]):
    """The answer to request `id`: a result, or the text of what was raised."""

    id: int
    result: Result | None = None
    error: str | None = None
    line: str | None = None


class Nothing(Frozen):
    """The result of a verb that has none."""


DESCRIBE_REPLY: TypeAdapter[Reply[Description]] = TypeAdapter(Reply[Description])
RESET_REPLY: TypeAdapter[Reply[Nothing]] = TypeAdapter(Reply[Nothing])
APPLY_REPLY: TypeAdapter[Reply[Outcome]] = TypeAdapter(Reply[Outcome])
OBSERVE_REPLY: TypeAdapter[Reply[Observation]] = TypeAdapter(Reply[Observation])
