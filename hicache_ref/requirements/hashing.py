"""HASH: a page's hash is the chain of everything before it, its namespace included."""

from hicache_ref.requirements.registry import Broken, always
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.hashing import chain, namespace_seed
from hicache_ref.vocabulary.ids import ROOT, PageHash
from hicache_ref.vocabulary.keys import PageKeys

_seen: dict[tuple[PageHash, ...], tuple[PageKeys, PageHash | None, bool]] = {}
"""Chains that were recomputed before: hashes -> what they are the hashes of."""

_SEEN_MAX = 1 << 16


def is_chain(hashes: tuple[PageHash, ...], pages: PageKeys, prior: PageHash | None, bigram: bool) -> bool:
    """Whether these are the hashes of consecutive pages, the first one chained to `prior`."""
    if _seen.get(hashes) == (pages, prior, bigram):
        return True
    if hashes != chain(pages, prior, bigram):
        return False
    if len(_seen) >= _SEEN_MAX:
        _seen.clear()
    _seen[hashes] = (pages, prior, bigram)
    return True


@always("HC-HASH-01", "nodes")
def chains(view: View) -> int:
    """The hashes of a node are those of its pages, chained to the last one above, at the top to its namespace."""
    bigram = view.profile.bigram
    for row, above in view.pairs:
        prior = above.hashes[-1] if above.hashes else namespace_seed(row.extra) if row.extra is not None else None
        if (above.id != ROOT and not above.hashes) or not is_chain(row.hashes, row.key, prior, bigram):
            raise Broken.because(f"the hashes of node {row.id} are not those of its pages")
    return len(view.rows)


@always("HC-HASH-02", "nodes")
def namespaces_share_nothing(view: View) -> int:
    """No hash occurs twice in the tree, so that pages of two namespaces never stand for each other."""
    if len({row.extra for row in view.rows}) < 2:
        return 0
    hashes = [digest for row in view.rows for digest in row.hashes]
    if len(set(hashes)) != len(hashes):
        raise Broken.because("two pages of the tree have one hash")
    return len(hashes)
