"""`python -m hicache_ref.adapters.sglang_teller JOB` writes a trace of what comes through shared memory."""

import gc
import json
import os
import sys
import time
from contextlib import suppress
from inspect import signature

from hicache_ref.adapters.sglang_teller import Job
from hicache_ref.adapters.sglang_teller.nodes import CannotSay, Nodes, Shape
from hicache_ref.adapters.sglang_teller.ring import CLOSED, Reader
from hicache_ref.adapters.sglang_teller.storing import StoringCalls
from hicache_ref.adapters.sglang_teller.writing import TraceWriter
from hicache_ref.trace import TraceError

_GONE = "the recorded process ended without closing the trace: what it did last may be missing"


def tell(job: Job) -> str | None:
    """Everything handed over is in the trace; why that ends before its time, if it does."""
    ring = Reader(job.memory, job.rope, job.size)
    writer = TraceWriter(job.trace, job.path)
    try:
        try:
            _tell_all(ring, StoringCalls(Shape(*job.shape), Nodes(ring), writer), writer)
            why = ring.why() or _GONE
        except CannotSay as error:
            why = str(error)
        except TraceError:
            raise
        except Exception as error:
            why = f"the recorder failed: {type(error).__name__}: {error}"
        if why == CLOSED:
            writer.close()
            return None
        writer.end(why)
    except TraceError as error:
        return str(error)
    return why


def _tell_all(ring: Reader, calls: StoringCalls, writer: TraceWriter) -> None:
    tellers = {}
    for name in dir(calls):
        if name.startswith("on_"):
            teller = getattr(calls, name)
            tellers[name.removeprefix("on_").encode()] = teller, len(signature(teller).parameters)
    for records in ring.frames():
        at = 0
        while at < len(records):
            teller, count = tellers[records[at]]
            teller(*records[at + 1 : at + 1 + count])
            at += 1 + count
        writer.flush()


def main(words: list[str]) -> None:
    """The process that was started is over, and one without a parent works on."""
    job = Job(*json.loads(words[0]))
    if os.fork():
        return
    gc.freeze()
    # It must not take the core from a server that has just woken it.
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    why = tell(job)
    os.write(job.answer, json.dumps({"ended": why, "seconds": time.process_time()}).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
