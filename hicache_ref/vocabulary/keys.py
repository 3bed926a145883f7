"""Keys: what a prompt is to the cache, and how it is cut into pages.

A key is a token sequence in a namespace. It is cut into whole pages; what is left over never reaches the tree.
In bigram mode (EAGLE) the unit is a pair of neighbouring tokens, so that N+1 tokens give N units, and a page
keeps the token it shares with the next one.
"""

from collections.abc import Container
from functools import lru_cache
from hashlib import sha256
from typing import Annotated

from pydantic import Field

from hicache_ref.vocabulary.base import Frozen

Token = Annotated[int, Field(ge=0, lt=2**63)]
PageKey = tuple[int, ...]
"""The tokens of one page: `page_size` of them, in bigram mode one more."""

PageKeys = tuple[PageKey, ...]
ChildKey = tuple[str | None, PageKey]
"""What a node files a child under: namespace and first page (upstream: child key)."""


class Key(Frozen):
    """A token sequence and its namespace (upstream: RadixKey)."""

    tokens: tuple[Token, ...]
    extra: str | None = None
    """`extra_key`: adapter, salt, tenant. Keys of different namespaces share no node."""

    def __str__(self) -> str:
        text = ".".join(map(str, self.tokens))
        return text if self.extra is None else f"{self.extra}/{text}"


@lru_cache(maxsize=1 << 16)
def pages_of(tokens: tuple[int, ...], page_size: int, bigram: bool) -> PageKeys:
    """The whole pages of `tokens`; a rest shorter than a page is dropped (HC-TREE-02)."""
    units = len(tokens) - 1 if bigram else len(tokens)
    width = page_size + 1 if bigram else page_size
    return tuple(tokens[start : start + width] for start in range(0, units - page_size + 1, page_size))


def tokens_of(pages: PageKeys, bigram: bool) -> tuple[int, ...]:
    """The tokens that `pages` spell: the inverse of `pages_of` on aligned keys."""
    if not bigram:
        return tuple(token for page in pages for token in page)
    return tuple(token for page in pages for token in page[:-1]) + pages[-1][-1:] if pages else ()


_NAME_TOKENS_MAX = 24


def handle(kind: str, key: Key, taken: Container[str] = ()) -> str:
    """The name of an operation on `key`: `kind:key`, with `#2`, `#3`, ... while that is in `taken`.

    A key of more than 24 tokens is named by its length and the first 12 hex digits of SHA-256 of its text.
    """
    return handle_of(kind, str(key), len(key.tokens), taken)


def handle_of(kind: str, text: str, tokens: int, taken: Container[str] = ()) -> str:
    """As `handle`, of a key of so many tokens whose text is `text`."""
    if tokens > _NAME_TOKENS_MAX:
        text = f"{tokens}~{sha256(text.encode()).hexdigest()[:12]}"
    name, count = f"{kind}:{text}", 1
    while name in taken:
        count += 1
        name = f"{kind}:{text}#{count}"
    return name
