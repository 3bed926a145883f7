"""What was seen of an implementation, in a form to compare: residency by page hash, and what breaks on sight.

Some requirements can be judged on an observation alone. They are judged first, for they say best what is wrong.
"""

from collections import Counter
from dataclasses import dataclass, field

from hicache_ref.vocabulary.hashing import chain, namespace_seed
from hicache_ref.vocabulary.ids import KV_DEVICE, KV_HOST, KV_POOLS, PageHash, Pages, PoolName
from hicache_ref.vocabulary.keys import pages_of
from hicache_ref.vocabulary.observation import Observation, Segment
from hicache_ref.vocabulary.profile import Profile


class SeenBroken(Exception):
    """An observation breaks a requirement by itself."""

    def __init__(self, requirement: str, text: str) -> None:
        super().__init__(text)
        self.requirement = requirement
        self.text = text


@dataclass
class Seen:
    """Residency of an implementation: page hash -> page, per pool; node ends; who else holds pages."""

    pages: dict[PoolName, dict[PageHash, int]]
    ends: dict[PageHash, Segment]
    free: dict[PoolName, Pages]
    held: dict[PoolName, Pages]
    requests: dict[str, Pages]
    queued: Pages = ()
    """Host pages that were given up and wait for a poll."""

    prefetches: dict[str, Pages] = field(default_factory=dict)
    """Host pages that prefetches have."""

    names: dict[PageHash, str] = field(default_factory=dict)
    """Page hash -> the key it ends, for texts."""


def seen(observation: Observation, profile: Profile, write_back: bool) -> Seen:
    """The observation by page hash. Raises SeenBroken if it contradicts itself or a rule of structure."""
    result = Seen(
        pages={KV_DEVICE: {}, KV_HOST: {}},
        ends={},
        free={KV_DEVICE: observation.free_device, KV_HOST: observation.free_host},
        held={KV_DEVICE: observation.held_device, KV_HOST: observation.held_host},
        requests=observation.requests,
        queued=observation.queued_host,
        prefetches=observation.prefetch_host,
    )
    paths: list[tuple[PageHash | None, str, Segment | None]] = []
    for segment in observation.segments:
        if not -1 <= segment.parent < len(paths):
            raise SeenBroken("HC-TREE-01", f"segment {len(paths)} names parent {segment.parent}")
        prior, text, above = (None, "", None) if segment.parent < 0 else paths[segment.parent]
        _judge_segment(segment, above, profile, write_back)
        paths.append(_file(result, segment, prior, text, profile))
    return result


def _judge_segment(segment: Segment, above: Segment | None, profile: Profile, write_back: bool) -> None:
    """What must hold between a segment and the one above it."""
    name = ".".join(map(str, segment.tokens))
    pages = pages_of(segment.tokens, profile.sizes.page_size, profile.bigram)
    if not pages or len(pages) * profile.sizes.page_size + profile.bigram != len(segment.tokens):
        raise SeenBroken("HC-TREE-02", f"segment [{name}] is not a positive number of whole pages")
    for tier, held in (("device", segment.device), ("host", segment.host)):
        if held is not None and len(held) != len(pages):
            raise SeenBroken("HC-TREE-02", f"segment [{name}] of {len(pages)} pages has {len(held)} on {tier}")
    if segment.device is None and segment.host is None:
        raise SeenBroken("HC-TREE-03", f"segment [{name}] has no copy on any tier")
    if above is None:
        return
    if above.extra != segment.extra:
        raise SeenBroken("HC-TREE-05", f"segment [{name}] is in namespace {segment.extra}, its parent in {above.extra}")
    if segment.device is not None and above.device is None:
        raise SeenBroken("HC-TREE-06", f"segment [{name}] is resident below a host-only one")
    gap = segment.host is not None and above.host is None
    if gap and profile.rules.contiguity and not (write_back and above.device is not None):
        raise SeenBroken("HC-BACKUP-01", f"segment [{name}] is backed up, the one above it is not")


def _file(result: Seen, segment: Segment, prior: PageHash | None, text: str,
          profile: Profile) -> tuple[PageHash, str, Segment]:  # fmt: skip
    """Enters the segment's pages under their hashes."""
    pages = pages_of(segment.tokens, profile.sizes.page_size, profile.bigram)
    hashes = chain(pages, prior or namespace_seed(segment.extra), profile.bigram)
    if hashes[0] in result.names:
        raise SeenBroken("HC-TREE-05", f"two segments hold the page that ends {result.names[hashes[0]]}")
    for index, digest in enumerate(hashes):
        text += ("." if text else "") + ".".join(map(str, pages[index][: profile.sizes.page_size]))
        result.names[digest] = text if segment.extra is None else f"{segment.extra}/{text}"
        for pool_name, held in ((KV_DEVICE, segment.device), (KV_HOST, segment.host)):
            if held is not None:
                result.pages[pool_name][digest] = held[index]
    result.ends[hashes[-1]] = segment
    return hashes[-1], text, segment


def judge_owners(view: Seen, profile: Profile) -> None:
    """Every page of every pool has exactly one holder. Raises SeenBroken (HC-PAGE-01, 02, 03)."""
    sizes = {KV_DEVICE: profile.sizes.device_pages, KV_HOST: profile.sizes.host_pages}
    for pool_name in KV_POOLS:
        tier = "device" if pool_name == KV_DEVICE else "host"
        holders = [*view.pages[pool_name].values(), *view.free[pool_name], *view.held[pool_name]]
        if pool_name == KV_DEVICE:
            holders += [page for pages in view.requests.values() for page in pages]
        else:
            holders += [*view.queued, *(page for pages in view.prefetches.values() for page in pages)]
        held = set(holders)
        if len(holders) == len(held) == sizes[pool_name] and min(held) == 0 and max(held) == len(held) - 1:
            continue
        for page, count in Counter(holders).items():
            if count > 1:
                raise SeenBroken("HC-PAGE-01", f"{tier} page {page} has {count} holders: {_who(view, pool_name, page)}")
        missing = sorted(set(range(sizes[pool_name])) - set(holders))
        if missing:
            requirement = "HC-PAGE-02" if tier == "device" else "HC-PAGE-03"
            raise SeenBroken(requirement, f"{tier} page {', '.join(map(str, missing))} is owned by nobody")
        raise SeenBroken("HC-PAGE-01", f"{tier} pages beyond the pool of {sizes[pool_name]} are held")


def _who(view: Seen, pool_name: PoolName, page: int) -> str:
    """Everybody who holds the page, in words."""
    found = [f"node page {view.names[d]}" for d, held in view.pages[pool_name].items() if held == page]
    found += ["the free list"] * view.free[pool_name].count(page)
    found += ["an operation"] * view.held[pool_name].count(page)
    if pool_name == KV_DEVICE:
        found += [f"request {rid}" for rid, pages in view.requests.items() if page in pages]
    else:
        found += ["the release queue"] * view.queued.count(page)
        found += [f"prefetch {name}" for name, pages in view.prefetches.items() for held in pages if held == page]
    return ", ".join(found)
