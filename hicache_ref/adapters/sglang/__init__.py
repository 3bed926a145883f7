"""A live HiRadixCache of a running SGLang server, recorded: what happens to it becomes a trace.

`record(cache, path)` is called once, in the scheduler's process, after the cache was made and before its first request.
"""

import atexit
import os
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

from hicache_ref.adapters.sglang.recorder import LOOKING_SHARE, Recorder
from hicache_ref.adapters.sglang.shape import RecordError, header_of, shape_of, tree_of
from hicache_ref.adapters.sglang_teller import Teller
from hicache_ref.adapters.sglang_teller.writing import begun

VARIABLE = "HICACHE_REF_RECORD"
"""The environment variable that says where to record to."""

__all__ = ["VARIABLE", "RecordError", "Recorder", "record", "record_if_asked"]


def record(cache: Any, path: Path | str, *, look_every: int = 1000, looking_share: float = LOOKING_SHARE) -> Recorder:
    """What happens to `cache` from now on is written to `path`; `hicache-ref check --trace` judges it.

    The whole tree is looked at as the recording begins and as it ends, and between after `look_every` calls, or later:
    looking takes no more than `looking_share` of the cache's own time. Raises RecordError if the cache is not as new or
    of a kind that the trace has no words for, TraceError where the file cannot be written.
    """
    engine = tree_of(cache)
    try:
        teller = Teller(begun(path, header_of(engine)), str(path), shape_of(engine))
    except (OSError, CalledProcessError) as error:
        raise RecordError(f"the process that writes the trace cannot be started ({error}), expected it to") from None
    return Recorder(engine, teller, look_every, looking_share)


def record_if_asked(cache: Any) -> Recorder | None:
    """As `record`, to the file that HICACHE_REF_RECORD names; None where it is not set.

    `{pid}` in the name is the process's number, for servers of several ranks. A process that exits closes it.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    recorder = record(cache, path.replace("{pid}", str(os.getpid())))
    atexit.register(recorder.close)
    return recorder
