"""Keys for the search: few letters and short words, so that prefixes collide all the time."""

import random
from functools import lru_cache
from itertools import product

from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.profile import Profile

LETTERS = (0, 1)
LENGTH_MAX = 4
NAMESPACES: tuple[str | None, ...] = (None, "a")


def spell(letters: tuple[int, ...], page_size: int, bigram: bool, extra: str | None) -> Key:
    """The key whose pages are these letters, each repeated to fill its page."""
    tokens = tuple(letter for letter in letters for _ in range(page_size))
    if bigram and tokens:
        tokens += tokens[-1:]
    return Key(tokens=tokens, extra=extra)


@lru_cache(maxsize=64)
def words(page_size: int, bigram: bool, extra: str | None) -> tuple[Key, ...]:
    """All keys of 1 to 4 pages over two letters, in one namespace."""
    return tuple(
        spell(letters, page_size, bigram, extra)
        for length in range(1, LENGTH_MAX + 1)
        for letters in product(LETTERS, repeat=length)
    )


def draw_key(rng: random.Random, profile: Profile, *, namespaces: bool = True) -> Key:
    """A word, in the second namespace one time in eight, with half a page more one time in eight."""
    page_size = profile.sizes.page_size
    extra = NAMESPACES[1] if rng.random() < 0.125 and namespaces else NAMESPACES[0]
    key = rng.choice(words(page_size, profile.bigram, extra))
    if page_size > 1 and rng.random() < 0.125:
        return Key(tokens=key.tokens + (LETTERS[0],) * (page_size // 2), extra=extra)
    return key
