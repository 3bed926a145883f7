"""The chained hash of pages, byte for byte as SGLang computes it (semantics: `get_hash_str`).

A page's digest is SHA-256 over the parent digest (32 raw bytes, absent at a chain's start) and the page's units,
each token as unsigned 32-bit little endian; in bigram mode a unit is two tokens. If any token of the page needs
more, the page is 0xFF and all tokens as unsigned 64-bit. A namespace seeds the chain.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise

from hicache_ref.vocabulary.ids import PageHash
from hicache_ref.vocabulary.keys import Key, PageKey, PageKeys, pages_of

_NARROW_LIMIT = 2**32
_NAMESPACE_TAG = b"sglang-cache-namespace-v1"


def _page_bytes(page: PageKey, bigram: bool) -> bytes:
    tokens = [token for pair in pairwise(page) for token in pair] if bigram else page
    if any(token >= _NARROW_LIMIT for token in tokens):
        return b"\xff" + struct.pack(f"<{len(tokens)}Q", *tokens)
    return struct.pack(f"<{len(tokens)}I", *tokens)


@lru_cache(maxsize=1 << 18)
def page_hash(page: PageKey, prior: PageHash | None, bigram: bool = False) -> PageHash:
    """The digest of `page` after `prior`, as 64 hex digits (HC-HASH-01)."""
    head = bytes.fromhex(prior) if prior else b""
    return sha256(head + _page_bytes(page, bigram)).hexdigest()


@lru_cache(maxsize=1 << 12)
def namespace_seed(extra: str | None, salt: str | None = None) -> PageHash | None:
    """What starts the chain of a namespace; None where there is none (HC-HASH-02)."""
    if extra is None and salt is None:
        return None
    return sha256(_NAMESPACE_TAG + _part(extra) + _part(salt)).hexdigest()


def _part(text: str | None) -> bytes:
    if text is None:
        return b"\x00"
    raw = text.encode()
    return b"\x01" + struct.pack("<Q", len(raw)) + raw


@lru_cache(maxsize=1 << 6)
def chain(pages: PageKeys, prior: PageHash | None, bigram: bool = False) -> tuple[PageHash, ...]:
    """The digests of consecutive `pages`, the first one chained to `prior`."""
    hashes = []
    for page in pages:
        prior = page_hash(page, prior, bigram)
        hashes.append(prior)
    return tuple(hashes)


def key_hashes(key: Key, page_size: int, bigram: bool) -> tuple[PageHash, ...]:
    """The digest of the prefix that ends with each of the key's whole pages, its namespace included."""
    return chain(pages_of(key.tokens, page_size, bigram), namespace_seed(key.extra), bigram)


def block_hash(digest: PageHash) -> int:
    """The number an event carries for a page: its first 16 hex digits as signed 64-bit (HC-EVENT-03)."""
    number = int(digest[:16], 16)
    return number - 2**64 if number >= 2**63 else number


def block_hashes(digests: Iterable[PageHash]) -> tuple[int, ...]:
    """`block_hash` of each digest, in order."""
    heads = bytes.fromhex("".join([digest[:16] for digest in digests]))
    return struct.unpack(f">{len(heads) // 8}q", heads)
