"""Traces: what is written is read back, and what is no trace is refused with file and line."""

import gzip
import lzma
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from hicache_ref.jsonlines import LINE_BYTES_MAX
from hicache_ref.trace import (
    Implementation,
    Trace,
    TraceError,
    TraceHeader,
    TraceStep,
    WriteAhead,
    dumps,
    loads,
    loads_header,
    read_trace,
    write_trace,
)
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.choices import Choice, CopyResult, Latitude, TookThese, Victim
from hicache_ref.vocabulary.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from hicache_ref.vocabulary.ids import KV_DEVICE
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.observation import Counts, IssuedCopy, Observation, Segment
from hicache_ref.vocabulary.outcomes import Evicted, Outcome, Refused, Took
from hicache_ref.vocabulary.profile import profile_named

KEY = Key(tokens=(1, 2**63 - 1), extra='ténant "a"\n')
OPERATIONS = (
    ops.MatchPrefix(key=KEY),
    ops.TakePages(rid="r0", n=2, prefix=KEY),
    ops.GiveBack(rid="r0"),
    ops.Forward(rid="r0", key=KEY, start=0),
    ops.ForwardDone(rid="r0"),
    ops.Insert(rid="r0", key=KEY, start=1, chunked=True),
    ops.Lock(receipt="l0", key=Key(tokens=()), at="best"),
    ops.Unlock(receipt="l0"),
    ops.Evict(n=1),
    ops.EvictHost(n=1),
    ops.EvictState(n=1),
    ops.EvictHostState(n=1),
    ops.WriteBackup(key=KEY),
    ops.LoadBack(key=KEY, rid="r1"),
    ops.CopyDone(ticket="h:1.2"),
    ops.CopyFailed(ticket="d:1.2#2", first_failed=1),
    ops.Poll(backups=1),
    ops.Prefetch(rid="r0", key=KEY, now=5),
    ops.QueryDone(id="p:1.2", hits=1),
    ops.ReadDone(id="p:1.2", pages=1, draft=1),
    ops.WriteDone(id="b:1.2", raised=True),
    ops.Progress(rid="r0", now=7),
    ops.Terminate(rid="r0"),
    ops.Abort(rid="r0"),
    ops.Attach(),
    ops.Detach(),
    ops.ClearStorage(),
    ops.RegisterDraft(),
    ops.SetWritePolicy(policy="write_back"),
    ops.Audit(),
    ops.Reset(),
)
SEEN = Observation(
    level="bytes",
    counts=Counts(free_device=3),
    segments=(Segment(parent=-1, tokens=(1, 2), device=(0, 1), device_state=(2,), state_locked=True),),
    requests={"r0": (4,)},
    request_states={"r0": (1,)},
    copies=(
        IssuedCopy(ticket=None, to="host", source=(0,), target=(1,)),
        IssuedCopy(ticket="c:1", to="request", source=(), target=(), source_states=(2,), target_states=(1,)),
    ),
    events=(
        BlockStored(block_hash=-5, parent_block_hash=None, token_ids=(1,), medium="GPU"),
        BlockRemoved(block_hash=7, medium="CPU_PINNED"),
        AllBlocksCleared(),
    ),
    contents={"device:0": "ab" * 32},
)
CHOICES = (
    TookThese(pool=KV_DEVICE, answer=(1, 0)),
    Victim(pool=KV_DEVICE, answer=KEY),
    CopyResult(ticket="h:1", answer=False),
    Latitude(name="x", answer="y"),
)
HEADER = TraceHeader(
    requirements="0123abcd",
    profile=profile_named("sglang-0.5.23/small"),
    implementation=Implementation(name="engine", version="0.9"),
    level="tree",
    seed=7,
)
STEPS = tuple(TraceStep(i=i, op=op) for i, op in enumerate(OPERATIONS))
FULL = TraceStep(
    i=0, op=ops.TakePages(rid="é", n=2), choices=CHOICES, outcome=Took(pages=(0, 1)), observed=SEEN, meta={"a": [None]}
)
FIRST = dumps(HEADER).encode() + b"\n"
STEP = b'{"i":0,"op":{"op":"evict","n":1},"outcome":{"kind":"evicted","freed":1}}\n'


def write(path: Path, *pieces: bytes) -> Path:
    path.write_bytes(b"".join(pieces))
    return path


def complaint_about(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    return str(caught.value).removeprefix(f"{path}:")


def test_every_operation_round_trips(tmp_path: Path) -> None:
    """Goal: a trace says all that was said. Method: one of each operation, and a step with every field."""
    assert set(ops.OPERATION_TYPES) == {op.op for op in OPERATIONS}
    trace = Trace(HEADER, (FULL, *STEPS[1:]))

    write_trace(tmp_path / "a.jsonl", trace)

    assert trace == read_trace(tmp_path / "a.jsonl")
    assert ["a.jsonl"] == [path.name for path in tmp_path.iterdir()]


@given(
    st.builds(Key, tokens=st.lists(st.integers(0, 2**63 - 1)).map(tuple), extra=st.none() | st.text()),
    st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text()),
)
def test_a_line_round_trips(key: Key, meta: dict) -> None:
    """Goal: no key and no remark can break a line. Method: any text and token, there and back."""
    step = TraceStep(i=0, op=ops.MatchPrefix(key=key), meta=meta)

    line = dumps(step)

    assert step == loads(line)
    assert "\n" not in line


def test_the_written_form_is_compact_and_explicit() -> None:
    """Goal: lines that others can rely on. Method: one line, letter by letter."""
    step = TraceStep(i=3, op=ops.Insert(rid="r", key=Key(tokens=(1,)), start=0), outcome=Refused(why="full"))

    assert (
        '{"i":3,"op":{"op":"insert","rid":"r","key":{"tokens":[1]},"start":0,"inserted":0,"chunked":false,"priority":0},'
        '"outcome":{"kind":"refused","why":"full","wait_for":[]}}'
    ) == dumps(step)
    assert dumps(HEADER).startswith('{"format":"hicache-ref-trace","version":1,"requirements":"0123abcd","profile":{')


def test_keys_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    """Goal: old readers read new files. Method: unknown keys in header and step, none inside `op`."""
    header = FIRST.replace(b'"version":1', b'"version":1,"clock":"none"')

    trace = read_trace(write(tmp_path / "t", header, STEP.replace(b'"i":0', b'"i":0,"hint":{}')))

    assert (HEADER, ops.Evict(n=1)) == (trace.header, trace.steps[0].op)


@pytest.mark.parametrize(
    ("pieces", "complaint"),
    [
        ([], "1: empty file, expected the header of a hicache-ref-trace"),
        ([b'{"i":0}\n'], "1: format is missing, expected a value"),
        ([FIRST.replace(b"ref-trace", b"ref-tracy")], "1: format is 'hicache-ref-tracy', expected 'hicache-ref-trace'"),
        ([FIRST.replace(b'"version":1', b'"version":2', 1)], "1: version is 2, expected 1"),
        ([b"[1]\n"], "1: line is [1], expected an object"),
        ([FIRST[:40]], "1: not JSON (EOF while parsing a value at byte 40), expected one JSON object a line"),
        ([FIRST, b"hello\n"], "2: not JSON (expected value at byte 1), expected one JSON object a line"),
        ([FIRST, b"\n"], "2: not JSON (EOF while parsing a value at byte 0), expected one JSON object a line"),
        ([FIRST, STEP[:-1], b" x"], "2: not JSON (trailing characters at byte 74), expected one JSON object"),
        (
            [FIRST, STEP[:50], b"\n"],
            "2: not JSON (EOF while parsing an object at byte 50), expected one JSON object a line",
        ),
        ([b"\x89PNG\r\n\x1a\n\0\0"], "1: binary data (byte 0), expected JSON lines in UTF-8"),
        ([FIRST, STEP, b'{"i":\0}\n'], "3: binary data (NUL at byte 5), expected JSON lines in UTF-8"),
        ([FIRST, b'{"i":0,"x":"\xff"}\n'], "2: binary data (byte 12), expected JSON lines in UTF-8"),
        ([FIRST, b"[" * 5000 + b"\n"], "2: not JSON (recursion limit exceeded at byte 202), expected one"),
        ([b"\xef\xbb\xbf", FIRST], "1: a byte order mark of UTF-8, expected JSON lines in UTF-8 without one"),
        ([b"\xff\xfe{\0"], "1: a byte order mark of UTF-16, expected JSON lines in UTF-8 without one"),
        (
            [FIRST, STEP.replace(b"}\n", b',"meta":{"ms":NaN}}\n')],
            "2: a number NaN or Infinity, which JSON does not have, expected an integer",
        ),
        (
            [FIRST, STEP, STEP.replace(b"}\n", b',"meta":{"ms":-Infinity}}\n')],
            "3: a number NaN or Infinity, which JSON does not have, expected an integer",
        ),
        ([gzip.compress(FIRST + STEP)[:40]], "1: cannot be read (Compressed file ended before"),
        ([FIRST, STEP, STEP], "3: step 0, expected step 1"),
        ([FIRST, STEP.replace(b'"i":0', b'"i":1')], "2: step 1, expected step 0"),
        ([FIRST, STEP.replace(b'"i":0', b'"i":"0"')], "2: i is '0', expected a valid integer"),
        (
            [FIRST, STEP.replace(b'"op":"evict"', b'"op":"explode"')],
            "2: unknown op 'explode', expected one of 'match_p",
        ),
        ([FIRST, STEP.replace(b'"op":"evict"', b'"o":"evict"')], "2: op without 'op', expected one that says what it"),
        ([FIRST, STEP.replace(b'"n":1', b'"n":1,"m":1')], "2: unknown key op.evict.m, expected only known ones"),
        ([FIRST, STEP.replace(b"evicted", b"vanished")], "2: unknown outcome 'vanished', expected one of 'done', "),
        ([FIRST.replace(b'"chain"', b'"node"')], "1: profile.rules does not fit together (backup_scope 'node' leaves "),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, pieces: list[bytes], complaint: str) -> None:
    """Goal: one line that says where, what, and what was expected. Method: each way to be wrong, one file each."""
    said = complaint_about(write(tmp_path / "t.jsonl", *pieces))

    assert said.startswith(complaint)
    assert ", expected " in said
    assert "\n" not in said


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_a_compressed_trace_is_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """Goal: long recordings are kept compressed. Method: one trace, packed, under a name that does not say so."""
    path = write(tmp_path / "t.jsonl", pack(FIRST + STEP))

    assert (HEADER, (loads(STEP),)) == (read_trace(path).header, read_trace(path).steps)


def test_nan_in_a_string_is_a_word(tmp_path: Path) -> None:
    """Goal: only numbers are refused. Method: both words in a text that is shown."""
    path = write(tmp_path / "t", FIRST, STEP.replace(b"}\n", b',"meta":{"note":"NaN or Infinity"}}\n'))

    assert {"note": "NaN or Infinity"} == read_trace(path).steps[0].meta


def test_a_line_that_never_ends_is_refused(tmp_path: Path) -> None:
    """Goal: bounded memory. Method: a step larger than the cap."""
    path = write(tmp_path / "t", FIRST, b'{"i":0,"x":"', b"x" * LINE_BYTES_MAX, b'"}\n')

    assert f"2: line of more than {LINE_BYTES_MAX} bytes, expected no more" == complaint_about(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Goal: no traceback where there is no file. Method: a missing file and a folder."""
    assert " cannot be read (No such file or directory), expected a readable file" == complaint_about(tmp_path / "no")
    assert " cannot be read (Is a directory), expected a readable file" == complaint_about(tmp_path)


def test_a_trace_cut_off_anywhere_keeps_what_was_begun(tmp_path: Path) -> None:
    """Goal: a killed process loses no step that ran. Method: every prefix of a file, byte by byte.

    A step counts as run from the byte that ends its operation on.
    """
    steps = (FULL, TraceStep(i=1, op=OPERATIONS[0]))
    whole = FIRST + b"".join(dumps(step).encode() + b"\n" for step in steps)
    ends = (whole.index(b'"n":2}') + 6, whole.rindex(b"}}") + 1)
    for size in range(len(FIRST) - 1, len(whole) + 1):
        read = read_trace(write(tmp_path / "t", whole[:size])).steps

        begun = steps[: sum(size >= end for end in ends)]
        assert [step.op for step in begun] == [step.op for step in read], whole[:size]
        assert size < len(whole) - 2 or steps == read


def test_a_killed_process_leaves_the_operation_that_killed_it(tmp_path: Path) -> None:
    """Goal: write ahead. Method: a child that ends one step and is killed in the next one."""
    path = tmp_path / "t.jsonl"
    child = f"""
import os, signal
from hicache_ref.trace import WriteAhead, loads_header
from hicache_ref.vocabulary.operations import Evict, Reset
with WriteAhead({str(path)!r}, loads_header({dumps(HEADER)!r})) as trace:
    trace.before(0, Reset())
    trace.after()
    trace.before(1, Evict(n=3))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert -signal.SIGKILL == subprocess.run([sys.executable, "-c", child], timeout=60).returncode
    assert (TraceStep(i=0, op=ops.Reset()), TraceStep(i=1, op=ops.Evict(n=3))) == read_trace(path).steps


def test_write_ahead_and_write_at_once_agree(tmp_path: Path) -> None:
    """Goal: one form. Method: the same steps both ways, and the first line already there while its step runs."""
    trace = Trace(HEADER, (FULL, TraceStep(i=1, op=ops.Reset())))
    write_trace(tmp_path / "a", trace)
    with WriteAhead(tmp_path / "b", HEADER) as ahead:
        ahead.before(0, FULL.op)
        assert (TraceStep(i=0, op=FULL.op),) == read_trace(tmp_path / "b").steps
        ahead.after(FULL.choices, FULL.outcome, FULL.observed, FULL.meta)
        ahead.before(1, ops.Reset())

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_steps_are_begun_and_ended_in_turn(tmp_path: Path) -> None:
    """Goal: no mixed lines. Method: an end without a begin, and two begins."""
    with WriteAhead(tmp_path / "t", HEADER) as ahead:
        with pytest.raises(ValueError, match="no step has begun, expected `before` first"):
            ahead.after()
        ahead.before(0, ops.Reset())
        with pytest.raises(ValueError, match="has not ended, expected `after` first"):
            ahead.before(1, ops.Reset())

    assert (TraceStep(i=0, op=ops.Reset()),) == read_trace(tmp_path / "t").steps


def test_no_room_is_known_before_the_first_step(tmp_path: Path) -> None:
    """Goal: no run whose trace cannot be kept. Method: a full device, a missing folder, a folder as file."""
    for path, complaint in (
        (Path("/dev/full"), "/dev/full:1: cannot be written (No space left on device), expected a writable file"),
        (tmp_path / "no" / "t", f"{tmp_path}/no/t: cannot be written (No such file or directory), expected a writable"),
        (tmp_path, f"{tmp_path}: cannot be written (Is a directory), expected a writable file and room in it"),
    ):
        with pytest.raises(TraceError) as caught, WriteAhead(path, HEADER):
            pass
        assert str(caught.value).startswith(complaint)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file grows beyond `size` bytes, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def take_ten_steps(path: Path) -> None:
    with WriteAhead(path, HEADER) as ahead:
        for i in range(10):
            ahead.before(i, ops.Evict(n=1))
            ahead.after((), Evicted(freed=1))


def test_a_full_disk_leaves_a_valid_trace(tmp_path: Path) -> None:
    """Goal: what fitted is kept. Method: the disk is full at each byte of the first two steps."""
    path = tmp_path / "t"
    line = len(dumps(TraceStep(i=0, op=ops.Evict(n=1), outcome=Evicted(freed=1)))) + 1
    head = len(dumps(TraceStep(i=0, op=ops.Evict(n=1)))) - 1
    for room in range(2 * line):
        with room_for(len(FIRST) + room), pytest.raises(TraceError, match=r"written \(File too large\), expected"):
            take_ten_steps(path)

        read = read_trace(path)

        begun, ended = (room + line - head) // line, room // line
        assert (begun, ended) == (len(read.steps), sum(step.outcome is not None for step in read.steps))
        assert read.header == HEADER


def test_a_trace_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    """Goal: no half trace over a good one. Method: no room for the second one."""
    path = tmp_path / "t"
    write_trace(path, Trace(HEADER, ()))
    with room_for(len(FIRST)), pytest.raises(TraceError, match="cannot be written"):
        write_trace(path, Trace(HEADER, STEPS))

    assert Trace(HEADER, ()) == read_trace(path)
    assert ["t"] == os.listdir(tmp_path)


@pytest.mark.parametrize("kind", [*Frozen.__subclasses__()], ids=lambda kind: kind.__name__)
def test_what_may_be_absent_has_a_default(kind: type[Frozen]) -> None:
    """Goal: None is not written, so it must be what a missing key means. Method: every field of every record.

    Where a missing key means something else, None is written as null.
    """
    for name, field in kind.model_fields.items():
        nullable = type(None) in get_args(field.annotation)
        written = TypeAdapter(kind).dump_json(kind.model_construct(**{name: None}), exclude_none=True, warnings=False)
        assert not nullable or field.default is None or b'"%b":null' % name.encode() in written, name


def test_the_format_is_written_down() -> None:
    """Goal: a reader can be written from the text alone. Method: its examples parse, and it names every kind."""
    text = (Path(__file__).parents[2] / "spec" / "trace-format.md").read_text()
    header, *steps = [line for line in text.splitlines() if line.startswith("{")]

    assert 7 == loads_header(header).seed
    assert [0, 1, 2, 3, 4] == [loads(step).i for step in steps]
    kinds = {*ops.OPERATION_TYPES, *tags(Choice, "ask"), *tags(Outcome, "kind"), *tags(Event, "kind")}
    assert set() == {kind for kind in kinds if f"`{kind}`" not in text}
    fields = {name for kind in records() for name in kind.model_fields}
    assert set() == {name for name in fields if f"`{name}`" not in text}


def tags(union: object, key: str) -> set[str]:
    return {kind.model_fields[key].default for kind in get_args(get_args(union)[0])}


def records() -> list[type[Frozen]]:
    unions = [get_args(get_args(union)[0]) for union in (ops.Operation, Choice, Outcome, Event)]
    return [Key, Observation, Counts, Segment, IssuedCopy, TraceHeader, TraceStep, *chain.from_iterable(unions)]
