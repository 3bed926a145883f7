"""The other end of `ProcessAdapter`: an adapter answers requests on standard input until that ends.

Anybody's adapter becomes a process by three lines, `serve(MyAdapter())` the last of them.
"""

import gc
import os
import traceback

from pydantic import ValidationError

from hicache_ref.adapters.wire import (
    REQUEST,
    ApplyRequest,
    DescribeRequest,
    Nothing,
    ObserveRequest,
    Reply,
    ResetRequest,
)
from hicache_ref.search.finding import line_raised
from hicache_ref.vocabulary.adapter import Adapter
from hicache_ref.vocabulary.observation import OBSERVATION
from hicache_ref.vocabulary.outcomes import OUTCOME

_READ_BYTES = 1 << 16


def serve(adapter: Adapter) -> None:
    """Every request on standard input has been answered, and standard input has ended.

    What `adapter` raises becomes an `error` reply and serving goes on. Whatever else prints to standard output, in
    Python or in native code, finds it moved to standard error, so that it cannot break the protocol.
    """
    answers = os.dup(1)
    os.dup2(2, 1)
    # What is imported by now stays. Looking through it for garbage again and again took a fifth of the time.
    gc.freeze()
    pending = b""
    while chunk := os.read(0, _READ_BYTES):
        *lines, pending = (pending + chunk).split(b"\n") if b"\n" in chunk else (pending + chunk,)
        # Requests that came together are answered together: one write, one waking of the other side.
        _write_all(answers, b"".join(_answer(adapter, line) for line in lines))


def _answer(adapter: Adapter, line: bytes) -> bytes:
    try:
        request = REQUEST.validate_json(line)
    except ValidationError as error:
        return _error(0, f"not a request: {error.error_count()} errors, the first is {error.errors()[0]['msg']}")
    try:
        result = _perform(adapter, request)
    except BaseException as error:
        if not _is_reportable(error):
            raise
        place = f" in {_raiser(error)}" if isinstance(request, ApplyRequest) else ""
        return _error(request.id, f"{type(error).__name__}{place}: {error}", line_raised(error))
    return b'{"id":%d,"result":%b}\n' % (request.id, result)


def _perform(adapter: Adapter, request: DescribeRequest | ResetRequest | ApplyRequest | ObserveRequest) -> bytes:
    match request:
        case ApplyRequest():
            return OUTCOME.dump_json(adapter.apply(request.op), exclude_none=True)
        case ObserveRequest():
            return OBSERVATION.dump_json(adapter.observe(request.level))
        case ResetRequest():
            adapter.reset(request.profile)
            return b"{}"
        case DescribeRequest():
            return adapter.describe().model_dump_json().encode()


def _raiser(error: BaseException) -> str:
    """The function that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].name if frames else "nothing"


def _is_reportable(error: BaseException) -> bool:
    """A Rust panic reaches Python as a BaseException, so that nobody catches it by accident; here it is an answer."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _error(number: int, text: str, line: str | None = None) -> bytes:
    return Reply[Nothing](id=number, error=text, line=line).model_dump_json(exclude_none=True).encode() + b"\n"


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
