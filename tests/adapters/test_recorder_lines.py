"""What a recorder writes: whole lines, bounded, in the format that readers know. Needs no engine."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from hicache_ref.adapters.sglang import lines, writing
from hicache_ref.adapters.sglang.threads import Asked, Read, Threads, Written
from hicache_ref.adapters.sglang.tickets import Copies
from hicache_ref.adapters.sglang.writing import TraceWriter
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


def test_lines_are_those_of_the_format(tmp_path: Path) -> None:
    """Goal: made by hand, read by the reader. Method: a key in a namespace, a missing value, an outcome, an end."""
    writer = TraceWriter(tmp_path / "t.jsonl", HEADER)
    writer.step(lines.op(b"load_back", key=lines.key([1, 2], "ten\u00e4nt"), quota=None), lines.DONE)
    writer.step(lines.op(b"poll", backups=1), lines.told(b"polled", backups=["h:1"]))
    writer.end(b'"enough"')
    trace = read_trace(tmp_path / "t.jsonl")

    assert (HEADER, "enough") == (trace.header, trace.ended)
    assert [ops.LoadBack(key=Key(tokens=(1, 2), extra="ten\u00e4nt")), ops.Poll(backups=1)] == [
        s.op for s in trace.steps
    ]
    assert [Done(), Polled(backups=("h:1",))] == [s.outcome for s in trace.steps]


def test_lines_reach_the_file_whole_and_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: bounded memory, and a crash that leaves whole lines. Method: look at the file after each step."""
    monkeypatch.setattr(writing, "LINES_HELD", 3)
    path = tmp_path / "t.jsonl"
    writer = TraceWriter(path, HEADER)
    seen = []
    for _ in range(7):
        writer.step(lines.op(b"poll"), lines.told(b"polled"))
        data = path.read_bytes()
        assert data.endswith(b"\n")
        seen.append(data.count(b"\n"))

    assert [1, 1, 4, 4, 4, 7, 7] == seen
    writer.close()
    assert 7 == len(read_trace(path).steps)


def test_what_cannot_be_written_is_an_error_of_traces(tmp_path: Path) -> None:
    """Goal: a message, not a traceback of the system's. Method: a folder that is not there."""
    with pytest.raises(TraceError, match="cannot be written"):
        TraceWriter(tmp_path / "nowhere" / "t.jsonl", HEADER)


def test_nothing_follows_an_end(tmp_path: Path) -> None:
    """Goal: an end in the middle is an error with its line. Method: a step after it; and an end survives a rewrite."""
    path = tmp_path / "t.jsonl"
    writer = TraceWriter(path, HEADER)
    writer.end(b'"enough"')
    write_trace(tmp_path / "again.jsonl", read_trace(path))
    assert "enough" == read_trace(tmp_path / "again.jsonl").ended
    with path.open("ab") as stream:
        stream.write(b'{"i":0,"op":{"op":"audit"}}\n')
    with pytest.raises(TraceError, match=r"t\.jsonl:3: a line after the last one"):
        read_trace(path)


def test_a_node_that_is_known_is_locked_without_a_match(tmp_path: Path) -> None:
    """Goal: a lock by node and an insert of nothing new can be told. Method: a trace of them, judged."""
    path = tmp_path / "t.jsonl"
    writer = TraceWriter(path, HEADER)
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


class Cache:
    """As much of a cache as copies ask about."""

    def __init__(self) -> None:
        self.ongoing_write_through: dict[int, object] = {1: None, 2: None}
        self.ongoing_load_back: dict[int, object] = {}


class Node:
    """A node by its number."""

    def __init__(self, number: int) -> None:
        self.id = number


def test_copies_end_when_the_cache_waits_no_more() -> None:
    """Goal: names as the model gives them, ends in order. Method: two of one key, one within its own call."""
    cache = Cache()
    copies = Copies(cache)
    names = [copies.submitted("host", Node(number), "1.2", 2, call=number) for number in (1, 2)]
    assert ["h:1.2", "h:1.2#2"] == names
    cache.ongoing_write_through.clear()

    assert (["h:1.2"], []) == copies.applied(call=2)
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
    assert expected == threads.notes()
    assert not threads.has_notes()
