"""An implementation in another process, driven by JSON lines over its standard input and output (see `wire`)."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from hicache_ref.adapters.child import Child, plain
from hicache_ref.adapters.failures import (
    ImplementationFailed,
    ImplementationRaised,
    ProcessDied,
    ProcessHung,
    ProcessSpokeNonsense,
)
from hicache_ref.adapters.serving import serve
from hicache_ref.adapters.wire import APPLY_REPLY, DESCRIBE_REPLY, OBSERVE_REPLY, RESET_REPLY, Reply
from hicache_ref.jsonlines import complaint
from hicache_ref.vocabulary.adapter import AdapterError, Description
from hicache_ref.vocabulary.observation import Level, Observation
from hicache_ref.vocabulary.operations import OPERATION, Operation
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import Profile

__all__ = [
    "ImplementationFailed",
    "ImplementationRaised",
    "ProcessAdapter",
    "ProcessDied",
    "ProcessHung",
    "ProcessSpokeNonsense",
    "serve",
]

_START_SECONDS = 120.0
"""What a new process may take for its first answer: imports of an engine are slow on a cold disk."""

_RAW_CHARACTERS = 2000

Answer = TypeVar("Answer")


class ProcessAdapter:
    """An Adapter over a child process, which is started when first needed and again by `reset` after a failure.

    `step_timeout` is in seconds, for each exchange. Failures to describe or reset are AdapterErrors; later ones are
    ImplementationFailed, of which `ImplementationRaised` leaves the process alive.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str = "",
        step_timeout: float = 30.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        self.command = tuple(command)
        self.name = name or self.command[0]
        """What errors call it."""

        self.step_timeout = step_timeout
        self._env = env
        self._cwd = cwd
        self._child: Child | None = None
        self._is_new = False
        self._last_id = 0

    def describe(self) -> Description:
        """Says what this is. Raises AdapterError."""
        return self._prepared("describe", b"", DESCRIBE_REPLY)

    def reset(self, profile: Profile) -> None:
        """The implementation is new and follows `profile`. Raises AdapterError."""
        self._prepared("reset", b',"profile":' + profile.model_dump_json().encode(), RESET_REPLY)

    def apply(self, operation: Operation) -> Outcome:
        """The operation has happened. Raises ImplementationFailed."""
        number, line = self._apply_line(operation)
        return self._decode(self._exchange(line, 1)[0], number, APPLY_REPLY)

    def observe(self, level: Level) -> Observation:
        """What can be seen now. Raises ImplementationFailed."""
        number, line = self._observe_line(level)
        return self._decode(self._exchange(line, 1)[0], number, OBSERVE_REPLY)

    def step(self, operation: Operation, level: Level) -> tuple[Outcome, Observation]:
        """As `apply` and then `observe`, in one round trip."""
        first, apply_line = self._apply_line(operation)
        second, observe_line = self._observe_line(level)
        applied, observed = self._exchange(apply_line + observe_line, 2)
        return self._decode(applied, first, APPLY_REPLY), self._decode(observed, second, OBSERVE_REPLY)

    def close(self) -> None:
        """The process is gone."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def __enter__(self) -> "ProcessAdapter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _apply_line(self, operation: Operation) -> tuple[int, bytes]:
        return self._request("apply", b',"op":' + OPERATION.dump_json(operation, exclude_none=True))

    def _observe_line(self, level: Level) -> tuple[int, bytes]:
        return self._request("observe", b',"level":"%b"' % level.encode())

    def _request(self, verb: str, rest: bytes) -> tuple[int, bytes]:
        self._last_id += 1
        return self._last_id, b'{"id":%d,"verb":"%b"%b}\n' % (self._last_id, verb.encode(), rest)

    def _prepared(self, verb: str, rest: bytes, kind: TypeAdapter[Reply[Answer]]) -> Answer:
        """The answer to what is asked before any step, where nothing can be the fault of a rule."""
        if self._child is None:
            try:
                self._child = Child(self.command, self._env, self._cwd)
            except OSError as error:
                raise AdapterError(f"cannot start {self.name!r}: {error.strerror}") from error
            self._is_new = True
        number, line = self._request(verb, rest)
        try:
            return self._decode(self._exchange(line, 1)[0], number, kind)
        except ImplementationRaised as error:
            said = error.raw.removeprefix("AdapterError: ")
            place = f" ({error.line})" if error.line and said == error.raw else ""
            raise AdapterError(f"{said}{place}") from error
        except ImplementationFailed as error:
            raise AdapterError(f"cannot {verb} {self.name!r}: {error}") from error

    def _exchange(self, lines: bytes, replies: int) -> list[bytes]:
        if self._child is None:
            raise ProcessDied("the implementation's process is gone until the next reset")
        timeout = max(self.step_timeout, _START_SECONDS) if self._is_new else self.step_timeout
        try:
            answers = self._child.exchange(lines, replies, timeout)
        except BaseException:
            # Also after Ctrl-C: the answer that was not awaited would be taken for that of the next request.
            self._kill()
            raise
        self._is_new = False
        return answers

    def _decode(self, line: bytes, number: int, kind: TypeAdapter[Reply[Answer]]) -> Answer:
        try:
            reply = kind.validate_json(line)
        except ValidationError as error:
            raise self._nonsense(line, complaint(error)) from None
        if reply.id != number:
            raise self._nonsense(line, f"id {reply.id}, expected {number}")
        if reply.error is not None:
            raised = plain(reply.error)
            raise ImplementationRaised(f"the implementation raised {raised}", raw=raised, line=reply.line)
        if reply.result is None:
            raise self._nonsense(line, "neither result nor error")
        return reply.result

    def _nonsense(self, line: bytes, why: str) -> ProcessSpokeNonsense:
        text = line.decode(errors="replace")[:_RAW_CHARACTERS]
        stderr = self._child.stderr() if self._child is not None else ()
        self._kill()
        return ProcessSpokeNonsense(f"the implementation answered {text!r}: {why}", raw=text, stderr=stderr)
