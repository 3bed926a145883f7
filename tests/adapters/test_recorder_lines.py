"""What a recorder writes: whole lines, bounded, in the format that readers know. Needs no engine."""

import os
import random
import subprocess
import sys
import time
from array import array
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hicache_ref.adapters.sglang.threads import Asked, Read, Threads, Written
from hicache_ref.adapters.sglang_teller import Teller, lines
from hicache_ref.adapters.sglang_teller.nodes import ROOT, CannotSay, Nodes, Numbers, SentKey, Shape
from hicache_ref.adapters.sglang_teller.ring import CLOSED, Behind, Reader, Writer, made_memory
from hicache_ref.adapters.sglang_teller.storing import StoringCalls
from hicache_ref.adapters.sglang_teller.tickets import Copies
from hicache_ref.adapters.sglang_teller.writing import TraceWriter, begun
from hicache_ref.jsonlines import LINE_BYTES_MAX
from hicache_ref.oracle.judge import judge
from hicache_ref.requirements import Checker
from hicache_ref.trace import Implementation, TraceError, TraceHeader, read_trace, write_trace
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.outcomes import Done, Polled
from hicache_ref.vocabulary.profile import profile_named

HEADER = TraceHeader(
    requirements="00000000",
    profile=profile_named("tiny"),
    implementation=Implementation(name="toy", version="1"),
    level="tree",
)
SHAPE = Shape(1, 6, 1, 2, allocates_before=False, acknowledges_batches=True)


class StubNodes(Nodes):
    """The root alone, and keys of tokens that count from one."""

    def __init__(self) -> None:
        pass

    def tokens(self, number: int) -> Numbers:
        """None are above."""
        return array("q")

    def part(self, sent: SentKey) -> Numbers:
        """As many as were sent."""
        return array("q", range(1, int(sent[3]) + 1))


def writer_of(path: Path) -> TraceWriter:
    """A writer of a trace that begins."""
    return TraceWriter(begun(path, HEADER), str(path))


def test_lines_are_those_of_the_format(tmp_path: Path) -> None:
    """Goal: made by hand, read by the reader. Method: a key in a namespace, a missing value, an outcome, an end."""
    writer = writer_of(tmp_path / "t.jsonl")
    writer.step(lines.op(b"load_back", key=lines.key([1, 2], "ten\u00e4nt"), quota=None), lines.DONE)
    writer.step(lines.op(b"poll", backups=1), lines.told(b"polled", backups=["h:1"]))
    writer.end("enough")
    trace = read_trace(tmp_path / "t.jsonl")

    assert (HEADER, "enough") == (trace.header, trace.ended)
    assert [ops.LoadBack(key=Key(tokens=(1, 2), extra="ten\u00e4nt")), ops.Poll(backups=1)] == [
        s.op for s in trace.steps
    ]
    assert [Done(), Polled(backups=("h:1",))] == [s.outcome for s in trace.steps]


@pytest.mark.parametrize("revokes", [True, False])
def test_a_revocation_is_told_where_the_cache_waits_no_more(tmp_path: Path, revokes: bool) -> None:
    """Goal: a poll tells what was done. Method: an answer without hits, after which the prefetch is open or is not."""
    writer = writer_of(tmp_path / "t.jsonl")
    calls = StoringCalls(SHAPE, StubNodes(), writer)
    calls.on_prefetch("r", ROOT, (-1, 0, 0, 2), None, 0, 7, 2)
    calls.on_asked(7, 0, enough=False, raised=False)
    if revokes:
        calls.on_closed([7], within=True)
    calls.on_news([("prefetch_hit_queue", (7, False))])
    writer.end("enough")

    told = read_trace(tmp_path / "t.jsonl").steps[-1].outcome
    assert Polled(answers=("p:1.2",), revoked=("p:1.2",) if revokes else ()) == told


@pytest.mark.parametrize("seed", range(6))
def test_a_ring_hands_over_what_was_put_into_it(seed: int) -> None:
    """Goal: nothing is lost or torn where the ring goes round. Method: blocks of drawn sizes, a reader that lags."""
    rng, size = random.Random(seed), 1 << 14
    memory, (bell, rope) = made_memory(size), os.pipe()
    writer, reader = Writer(memory, rope, size), Reader(memory, bell, size)
    frames, told, sent = reader.frames(), [], []
    for _ in range(300):
        block = rng.randbytes(rng.randrange(1500))
        writer.records.append((writer.put(block), len(sent)))
        sent.append(block)
        if rng.random() < 0.5:
            writer.flush()
            told += [(bytes(reader.bytes(span)), number) for span, number in next(frames)]
    writer.flush()
    writer.end(CLOSED)
    told += [(bytes(reader.bytes(span)), number) for records in frames for span, number in records]

    assert [(block, number) for number, block in enumerate(sent)] == told
    assert CLOSED == reader.why()


def test_whoever_writes_into_a_full_ring_does_not_wait(tmp_path: Path) -> None:
    """Goal: bounded memory, no stall, and a trace that says so. Method: more than a ring takes, behind a whole step."""
    path = tmp_path / "t.jsonl"
    teller = Teller(begun(path, HEADER), str(path), SHAPE, size=1 << 14)
    teller.ring.records += [b"evict", 1, 0]
    teller.ring.flush()
    with pytest.raises(Behind) as behind:
        teller.ring.put(bytes(1 << 15))
    teller.ring.end(str(behind.value))

    assert "the trace is incomplete: it was not written as fast as calls came" == teller.finished()["ended"]
    trace = read_trace(path)
    assert [ops.Evict(n=1)] == [step.op for step in trace.steps]
    assert str(behind.value) == trace.ended


def test_what_was_handed_over_outlives_a_killed_process(tmp_path: Path) -> None:
    """Goal: a crash loses what was not handed over, and no more. Method: a process kills itself after two steps."""
    path = tmp_path / "t.jsonl"
    script = f"""if True:
        import os
        from tests.adapters.test_recorder_lines import HEADER, SHAPE, Teller, begun
        teller = Teller(begun({str(path)!r}, HEADER), {str(path)!r}, SHAPE)
        teller.ring.records += [b"evict", 1, 0, b"evict", 2, 0]
        teller.ring.flush()
        teller.ring.records += [b"evict", 3, 0]
        os.kill(os.getpid(), 9)
    """
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))}
    killed = subprocess.run([sys.executable, "-W", "ignore", "-c", script], env=env, check=False)
    for _ in range(200):
        trace = read_trace(path)
        if trace.ended is not None:
            break
        time.sleep(0.05)

    assert -9 == killed.returncode
    assert [ops.Evict(n=1), ops.Evict(n=2)] == [step.op for step in trace.steps]
    assert "the recorded process ended without closing the trace: what it did last may be missing" == trace.ended


def test_no_line_is_longer_than_a_reader_takes(tmp_path: Path) -> None:
    """Goal: a trace that can be read. Method: a step as long as a line may be, and one that is longer."""
    writer = writer_of(tmp_path / "t.jsonl")
    space = LINE_BYTES_MAX - len(b'{"i":0,"op":\n')
    writer.step(b" " * space, b"")
    with pytest.raises(CannotSay, match="a step whose line has 8388609 bytes"):
        writer.step(b" " * (space + 1), b"")


def test_what_the_trace_has_no_words_for_ends_it(tmp_path: Path) -> None:
    """Goal: the server learns of it. Method: an unlock of what nobody locked."""
    path = tmp_path / "t.jsonl"
    teller = Teller(begun(path, HEADER), str(path), SHAPE)
    teller.ring.records += [b"evict", 1, 0, b"unlock", 7]
    teller.ring.flush()
    why = teller.finished()["ended"]

    assert "a node is unlocked that nobody has locked since the recording began" == why == read_trace(path).ended


def test_what_cannot_be_written_is_an_error_of_traces(tmp_path: Path) -> None:
    """Goal: a message, not a traceback of the system's. Method: a folder that is not there."""
    with pytest.raises(TraceError, match="cannot be written"):
        begun(tmp_path / "nowhere" / "t.jsonl", HEADER)


def test_nothing_follows_an_end(tmp_path: Path) -> None:
    """Goal: an end in the middle is an error with its line. Method: a step after it; and an end survives a rewrite."""
    path = tmp_path / "t.jsonl"
    writer = writer_of(path)
    writer.end("enough")
    write_trace(tmp_path / "again.jsonl", read_trace(path))
    assert "enough" == read_trace(tmp_path / "again.jsonl").ended
    with path.open("ab") as stream:
        stream.write(b'{"i":0,"op":{"op":"audit"}}\n')
    with pytest.raises(TraceError, match=r"t\.jsonl:3: a line after the last one"):
        read_trace(path)


def test_a_node_that_is_known_is_locked_without_a_match(tmp_path: Path) -> None:
    """Goal: a lock by node and an insert of nothing new can be told. Method: a trace of them, judged."""
    path = tmp_path / "t.jsonl"
    writer = writer_of(path)
    key = lines.key([1, 2], None)
    writer.step(lines.op(b"take_pages", rid="r", n=2), lines.told(b"took", pages=[0, 1]))
    writer.step(lines.op(b"forward", rid="r", key=key, start=0), lines.DONE)
    writer.step(lines.op(b"forward_done", rid="r"), lines.DONE)
    writer.step(lines.op(b"insert", rid="r", key=key, start=0), lines.told(b"inserted", prefix=0, given_back=[]))
    writer.step(lines.op(b"insert", rid="s", key=key, start=2), lines.told(b"inserted", prefix=2, given_back=[]))
    writer.step(lines.op(b"lock", receipt="l", key=key, at="node"), lines.DONE)
    writer.step(lines.op(b"evict", n=2), lines.told(b"evicted", freed=0))
    writer.step(lines.op(b"lock", receipt="m", key=lines.key([1], None), at="node"), lines.told(b"invalid", why=""))
    writer.close()
    outlook = judge(read_trace(path), Checker(HEADER.profile))

    assert ([], None, 8) == (outlook.divergences, outlook.oracle_fault, outlook.steps)


def test_copies_end_when_the_cache_waits_no_more() -> None:
    """Goal: names as the model gives them, ends in order. Method: two of one key, one within its own call."""
    copies = Copies()
    names = [copies.submitted("host", number, "1.2", 2) for number in (1, 2)]

    assert ["h:1.2", "h:1.2#2"] == names
    assert (["h:1.2"], []) == copies.applied([1, 2], [], at_once=[2])
    assert 0 == len(copies)


class Operation:
    """A prefetch or backup as threads have it."""

    def __init__(self) -> None:
        self.hash_value = ["a", "b", "c"]
        self.completed_tokens = 0

    def is_terminated(self) -> bool:
        """Never."""
        return False


def test_threads_note_what_storage_answered() -> None:
    """Goal: each answer once, the last batch as such. Method: a query, two batches of three pages, a failed backup."""
    threads, operation = Threads(None, 4), Operation()

    def fail(_: object) -> None:
        raise ValueError("no")

    threads.query(lambda _: (["a", "b", "c"], 12), operation)
    threads.get_pages(lambda _, hashes: len(hashes), operation, ["a", "b"])
    threads.get_pages(lambda _, hashes: len(hashes), operation, ["c"])
    threads.transfer(lambda _: None, operation)
    with pytest.raises(ValueError, match="no"):
        threads.backup(fail, operation)

    expected = [Asked(operation, 3), Read(operation, 2, False), Read(operation, 1, True), Written(operation, 0, True)]
    assert expected == list(threads.taken())
    assert not threads.notes
