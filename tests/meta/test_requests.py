"""Request streams: recorded ones are read as they are, made-up ones have the reuse that they claim."""

import gzip
import lzma
import os
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import pytest

from hicache_ref.search.requests import KINDS, Kind, Request, RequestError, read_requests, synthetic

TRACES = Path(os.environ.get("HICACHE_REF_TRACES", Path(__file__).parents[3] / "shared" / "traces"))

ROWS = b"""\
{"timestamp": 0, "input_length": 1024, "output_length": 511, "hash_ids": [0, 1]}
{"timestamp": 7, "input_length": 1025, "output_length": 511, "hash_ids": [0, 1, 2], "session": "a"}
{"timestamp": 7, "input_length": 100, "output_length": 2000, "hash_ids": [9]}
"""
REQUESTS = [Request(0, (0, 1), 0), Request(7, (0, 1), 1), Request(7, (), 4)]


def reuse(requests: Iterable[Request]) -> float:
    """The share of prompt blocks that a cache without bounds, filled by prompts alone, has seen before."""
    seen: set[int] = set()
    hits = blocks = 0
    for request in requests:
        known = [block in seen for block in request.blocks]
        hits += known.index(False) if False in known else len(known)
        blocks += len(known)
        seen.update(request.blocks)
    return hits / blocks


def is_prefix_tree(requests: Iterable[Request]) -> bool:
    """Whether each block id follows one and the same block wherever it appears."""
    before: dict[int, int] = {}
    return all(
        before.setdefault(block, prior) == prior
        for request in requests
        for prior, block in pairwise((-1, *request.blocks))
    )


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".jsonl", bytes), (".jsonl.gz", gzip.compress), (".jsonl.xz", lzma.compress)]
)
def test_recorded_requests_are_read(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    """Goal: whole blocks only, and output counted from where the prompt ended. Method: three rows, three packings."""
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(pack(ROWS))

    assert REQUESTS == list(read_requests(path))


def test_the_block_size_is_the_callers(tmp_path: Path) -> None:
    """Goal: streams recorded in other blocks. Method: 25 tokens in blocks of 10, and 7 more generated."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"timestamp":1,"input_length":25,"output_length":7,"hash_ids":[4,5,6]}')

    assert [Request(1, (4, 5), 1)] == list(read_requests(path, block_tokens=10))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (ROWS + b"{}\n", ":4: timestamp is missing, expected a value"),
        (ROWS + b"{\n", ":4: not JSON (EOF while parsing an object at byte 1), expected one JSON object a line"),
        (ROWS.replace(b"[9]", b"[9, 8]"), ":3: 2 hash_ids, expected 1 for 100 tokens in blocks of 512"),
        (ROWS.replace(b"[9]", b"[-9]"), ":3: hash_ids.0 is -9, expected greater than or equal to 0"),
        (ROWS.replace(b"100,", b'"100",'), ":3: input_length is '100', expected a valid integer"),
        (b"PK\x03\x04\0\0", ":1: binary data (NUL at byte 4), expected JSON lines in UTF-8"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, data: bytes, complaint: str) -> None:
    """Goal: one line with file and line. Method: good rows around one bad one."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(data)

    with pytest.raises(RequestError) as caught:
        list(read_requests(path))

    assert f"{path}{complaint}" == str(caught.value)


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_broken_archive_is_named(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    """Goal: no traceback from a library. Method: an archive cut off, and a file that is none, whatever its name."""
    expected = (
        (pack(ROWS)[:-20], r":[1-4]: cannot be read \(.*\), expected a whole file$"),
        (b"hello", r":1: not JSON \(.*\), expected one JSON object a line$"),
    )
    for data, complaint in expected:
        path = tmp_path / f"rows.jsonl{suffix}"
        path.write_bytes(data)

        with pytest.raises(RequestError, match=complaint):
            list(read_requests(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """Goal: no traceback either. Method: no file."""
    with pytest.raises(RequestError, match=r"rows: cannot be read \(No such file or directory\), expected a readable"):
        next(read_requests(tmp_path / "rows"))


def test_reading_does_not_wait_for_the_end(tmp_path: Path) -> None:
    """Goal: a file larger than memory can be read. Method: the first request comes although a later row is bad."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(ROWS + b"bad")

    assert REQUESTS[0] == next(read_requests(path))


@pytest.mark.parametrize(
    ("name", "count", "share"), [("conversation.jsonl.xz", 12_031, 0.3819), ("synthetic.jsonl.xz", 3_993, 0.6594)]
)
def test_public_traces_are_read(name: str, count: int, share: float) -> None:
    """Goal: real streams, all of them. Method: number, order, tree and reuse of the FAST'25 Mooncake traces."""
    if not (TRACES / name).exists():
        pytest.skip(f"{name} is not in {TRACES}: set HICACHE_REF_TRACES; reading real streams stays unproved")
    requests = list(read_requests(TRACES / name))

    assert count == len(requests)
    assert sorted(requests, key=lambda request: request.timestamp_ms) == requests
    assert is_prefix_tree(requests)
    assert share == round(reuse(requests), 4)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("kind", "share", "median"), [("conversation", 0.60, 16), ("agent", 0.95, 28)])
def test_made_up_streams_have_realistic_reuse(kind: Kind, share: float, median: int, seed: int) -> None:
    """Goal: reuse as in production, in a true prefix tree. Method: what a cache without bounds would hit."""
    requests = list(synthetic(kind, seed, 2_000))

    assert pytest.approx(share, abs=0.03) == reuse(requests)
    assert pytest.approx(median, rel=0.15) == sorted(len(request.blocks) for request in requests)[1_000]
    assert is_prefix_tree(requests)
    assert requests == sorted(requests, key=lambda request: request.timestamp_ms)
    assert {True, False} == {request.output_blocks == 0 for request in requests}


@pytest.mark.parametrize("kind", KINDS)
def test_made_up_streams_branch_and_retry(kind: Kind) -> None:
    """Goal: the shapes that split nodes. Method: some prompt comes twice, more forks than shared prefixes."""
    prompts = [request.blocks for request in synthetic(kind, 1, 2_000)]
    followers: dict[int, set[int]] = {}
    for prompt in prompts:
        for prior, block in pairwise(prompt):
            followers.setdefault(prior, set()).add(block)

    assert len(set(prompts)) < len(prompts)
    assert sum(len(after) > 1 for after in followers.values()) > 16 + 20


def test_a_seed_is_a_stream() -> None:
    """Goal: a run can be taken again. Method: the same seed, a longer count, another seed."""
    assert list(synthetic("agent", 5, 50)) == list(synthetic("agent", 5, 99))[:50]
    assert list(synthetic("agent", 5, 50)) != list(synthetic("agent", 6, 50))
    with pytest.raises(ValueError, match="unknown kind 'chat', expected one of conversation, agent"):
        synthetic("chat", 1, 1)  # type: ignore[arg-type]
