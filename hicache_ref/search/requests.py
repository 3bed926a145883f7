"""Streams of requests, recorded or made up: which blocks each prompt has, and how much was generated.

A block id stands for the same tokens after the same blocks wherever it appears, so that ids form a prefix tree
and one id can stand for one page.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count as numbers
from itertools import islice
from pathlib import Path
from random import Random
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hicache_ref.jsonlines import FileError, complaint, lines, opened

BLOCK_TOKENS = 512
"""Tokens a block in the recorded traces."""

Kind = Literal["conversation", "agent"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class RequestError(FileError):
    """A recorded stream cannot be read; the text says where, what, and what was expected."""


class Request(NamedTuple):
    """A request as the cache sees it."""

    timestamp_ms: int
    blocks: tuple[int, ...]
    """Ids of the whole blocks of the prompt; what is left over is never cached."""

    output_blocks: int
    """Blocks that the generated tokens fill up, the one that the prompt left unfinished included."""


class _Row(BaseModel):
    """A line of a recorded stream; keys that are not needed here are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    timestamp: Annotated[int, Field(ge=0)]
    input_length: Annotated[int, Field(ge=0)]
    output_length: Annotated[int, Field(ge=0)]
    hash_ids: tuple[Annotated[int, Field(ge=0)], ...]


def read_requests(path: Path | str, block_tokens: int = BLOCK_TOKENS) -> Iterator[Request]:
    """The requests of a file are given one by one, in the order of its lines; the file is never held whole.

    The file holds one JSON object a line, plain or compressed by gzip or xz, with `timestamp` in ms, `input_length`
    and `output_length` in tokens, and `hash_ids`: one id a block of `block_tokens` tokens, the last one partial.
    Raises RequestError at the line that is wrong.
    """
    path = Path(path)
    with opened(path, RequestError) as stream:
        for number, line in lines(path, stream, RequestError):
            try:
                row = _Row.model_validate_json(line.rstrip(), strict=True)
            except ValidationError as problem:
                raise RequestError(path, number, complaint(problem)) from None
            whole, rest = divmod(row.input_length, block_tokens)
            if len(row.hash_ids) != whole + bool(rest):
                text = f"{len(row.hash_ids)} hash_ids, expected {whole + bool(rest)}"
                raise RequestError(path, number, f"{text} for {row.input_length} tokens in blocks of {block_tokens}")
            yield Request(row.timestamp, row.hash_ids[:whole], (rest + row.output_length) // block_tokens)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What tells one kind of stream from another: chances are per request, sizes are means in blocks."""

    shared: int
    """Prefixes that sessions begin with, each rarer than the one before."""

    shared_blocks: int
    begin: float
    end: float
    branch: float
    retry: float
    turn_blocks: float
    answer_blocks: float
    gap_ms: float
    sessions_max: int = 256


_SHAPES: dict[Kind, _Shape] = {
    # Few system prompts, long turns; a user edits an earlier message now and then.
    "conversation": _Shape(
        shared=16, shared_blocks=3, begin=0.4, end=0.4, branch=0.1, retry=0.01,
        turn_blocks=8.0, answer_blocks=1.0, gap_ms=300.0,
    ),
    # One large description of tools, short steps; steps are tried in several ways, and again after failures.
    "agent": _Shape(
        shared=1, shared_blocks=24, begin=0.15, end=0.15, branch=0.25, retry=0.1,
        turn_blocks=1.0, answer_blocks=0.3, gap_ms=100.0,
    ),
}  # fmt: skip


def synthetic(kind: Kind, seed: int, count: int) -> Iterator[Request]:
    """`count` requests of branching sessions are given, the same ones for the same `kind` and `seed`.

    As in a recorded stream, the blocks of an answer get their ids when the next prompt of the session shows them.
    Raises ValueError for an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}, expected one of {', '.join(KINDS)}")
    return islice(_requests(_SHAPES[kind], Random(seed)), count)


class _Turn(NamedTuple):
    prompt: tuple[int, ...]
    answered: tuple[int, ...]
    """The prompt and its answer: what the next prompt extends."""


def _requests(shape: _Shape, draw: Random) -> Iterator[Request]:
    ids, clock = numbers(), 0.0
    shared = [_fresh(ids, shape.shared_blocks) for _ in range(shape.shared)]
    rarity = [1 / rank for rank in range(1, shape.shared + 1)]
    sessions: list[list[_Turn]] = []
    while True:
        if not sessions or draw.random() < shape.begin:
            prefix = draw.choices(shared, rarity)[0]
            sessions = [*sessions[-shape.sessions_max + 1 :], [_Turn(prefix, prefix)]]
        at = draw.randrange(len(sessions))
        prompt = _next_prompt(shape, draw, ids, sessions[at])
        output = _size(draw, shape.answer_blocks)
        sessions[at].append(_Turn(prompt, prompt + _fresh(ids, output)))
        yield Request(int(clock), prompt, output)
        clock += draw.expovariate(1 / shape.gap_ms)
        if draw.random() < shape.end:
            del sessions[at]


def _next_prompt(shape: _Shape, draw: Random, ids: Iterator[int], turns: list[_Turn]) -> tuple[int, ...]:
    """The last turn is asked again, or else this one or an earlier one goes on; `turns` ends where it does."""
    if len(turns) > 1 and draw.random() < shape.retry:
        return turns.pop().prompt
    if len(turns) > 1 and draw.random() < shape.branch:
        del turns[draw.randrange(1, len(turns)) :]
    return turns[-1].answered + _fresh(ids, 1 + _size(draw, shape.turn_blocks))


def _fresh(ids: Iterator[int], size: int) -> tuple[int, ...]:
    return tuple(islice(ids, size))


def _size(draw: Random, mean: float) -> int:
    """A whole number of blocks, small ones most often: 0 and up."""
    return int(draw.expovariate(1 / mean))
