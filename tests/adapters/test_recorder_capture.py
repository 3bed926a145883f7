"""What the recorder takes of live objects, without an engine."""

import os
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from hicache_ref.adapters.sglang.capture import Capture
from hicache_ref.adapters.sglang_teller.ring import Writer, made_memory


def node(number: int, above: Any, tokens: Any, extra: str | None, slots: list[int]) -> Any:
    """A node as upstream has it, in the tree under the node above it."""
    made = SimpleNamespace(
        id=number, parent=above, key=SimpleNamespace(token_ids=tokens, extra_key=extra), lock_ref=1, children={},
        value=torch.tensor(slots),
    )  # fmt: skip
    above.children[tokens[0] if extra is None else (extra, tokens[0])] = made
    return made


def key(tokens: Any, extra: str | None = None) -> Any:
    """A key as upstream has it."""
    made = SimpleNamespace(token_ids=tokens, extra_key=extra)
    made.child_key_at = lambda at, _: tokens[at] if extra is None else (extra, tokens[at])
    return made


def captured(root: Any) -> Capture:
    """A capture of a tree with this root."""
    memory, (_, rope) = made_memory(1 << 20), os.pipe()
    engine: Any = SimpleNamespace(
        cache=SimpleNamespace(root_node=root), page_size=1, allocator=SimpleNamespace(device="cpu")
    )
    return Capture(engine, Writer(memory, rope, 1 << 20))


@pytest.mark.parametrize("length", [4, 100, 3000])
def test_where_a_match_ended_is_where_its_key_goes_down(length: int) -> None:
    """Goal: no walk for the same key, a walk for any other. Method: a longer key, one in a namespace, another."""
    root = SimpleNamespace(id=0, parent=None, children={}, lock_ref=1, value=[])
    tokens = array("q", range(length))
    plain, spaced = (node(1 + at, root, tokens, extra, list(range(length))) for at, extra in enumerate((None, "x")))
    capture = captured(root)
    capture.key(key(tokens))
    capture.matched(key(tokens), plain, length)

    def path(asked: Any) -> Any:
        return capture.path(asked, capture.key(asked))

    longer = key(tokens + array("q", [7]))
    assert capture.place == path(longer)
    assert [spaced.id] == path(key(tokens, "x"))
    assert [] == path(key(array("q", [9]) + tokens[1:]))
    capture.key(key(tokens))
    capture.matched(key(tokens), plain, length)
    plain.value = plain.value.clone()
    assert [plain.id] == path(longer)
