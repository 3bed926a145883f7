"""HASH: a page's hash is the chain of everything before it, its namespace included."""

from hicache_ref.requirements.change import Change
from hicache_ref.requirements.match import ends
from hicache_ref.requirements.registry import Broken, always, step
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.hashing import chain, namespace_seed
from hicache_ref.vocabulary.ids import ROOT, PageHash
from hicache_ref.vocabulary.keys import PageKeys
from hicache_ref.vocabulary.operations import Prefetch
from hicache_ref.vocabulary.outcomes import Prefetching

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


@always("HC-HASH-03", "nodes", "storage", about="storage")
def namespaces_stay_here(view: View) -> int:
    """Without hash of the namespace no page of one is asked for, written, owed or believed stored."""
    if view.rules.hash_namespace:
        return 0
    storage = view.storage
    known = storage.believed | storage.owed.keys()
    known = known.union(*[record.hashes for record in storage.backups])
    secret = {digest for row in view.rows if row.extra is not None for digest in row.hashes}
    named = [record.id for record in storage.prefetches if record.extra is not None]
    if named or not known.isdisjoint(secret):
        raise Broken.because(
            f"{named or len(known & secret)} of a namespace touch storage, which does not tell them apart"
        )
    return 1 + len(secret)


@step("HC-HASH-04", "prefetch", told=("prefetching",))
def asked_by_tokens_alone(change: Change[Prefetch, Prefetching]) -> int:
    """Storage is asked for the hashes of the key's own pages, chained from the start of its namespace."""
    record = change.after.storage.prefetch(change.told.id)
    start = ends(change.before, change.hashes).best
    expected = change.hashes[start : start + change.told.pages]
    if record is None or record.hashes != expected or record.extra != change.op.key.extra:
        raise Broken.because(
            f"{change.told.id} asks for hashes that are not those of {change.op.key} from page {start} on"
        )
    return len(expected)
