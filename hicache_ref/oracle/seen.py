"""What was seen of an implementation, in a form to compare: residency by page hash, and what breaks on sight.

Some requirements can be judged on an observation alone. They are judged first, for they say best what is wrong.
"""

from collections import Counter
from dataclasses import dataclass, field

from hicache_ref.search.finding import Differs
from hicache_ref.vocabulary.hashing import chain, namespace_seed
from hicache_ref.vocabulary.ids import KV_DEVICE, KV_HOST, STATE_DEVICE, STATE_HOST, TIER, PageHash, Pages, PoolName
from hicache_ref.vocabulary.keys import pages_of
from hicache_ref.vocabulary.observation import Observation, Segment
from hicache_ref.vocabulary.profile import Profile


class SeenBroken(Exception):
    """An observation breaks a requirement by itself."""

    def __init__(self, requirement: str, text: str, differs: Differs | None = None) -> None:
        super().__init__(text)
        self.requirement = requirement
        self.text = text
        self.differs = differs or Differs(kind="structure")


@dataclass
class Seen:
    """Residency of an implementation: page hash -> page, per pool; node ends; who else holds pages."""

    pages: dict[PoolName, dict[PageHash, int]]
    ends: dict[PageHash, Segment]
    above: dict[PageHash, Segment | None]
    """Node end -> the segment above it."""

    free: dict[PoolName, Pages]
    held: dict[PoolName, Pages]
    requests: dict[str, Pages]
    queued: Pages = ()
    """Host pages that were given up and wait for a poll."""

    prefetches: dict[str, Pages] = field(default_factory=dict)
    """Host pages that prefetches have."""

    states: dict[PoolName, dict[str, Pages]] = field(default_factory=dict)
    """State slots on device of requests, by their names, and on host of prefetches."""

    names: dict[PageHash, str] = field(default_factory=dict)
    """Page hash -> the key it ends, for texts."""


def seen(observation: Observation, profile: Profile, write_back: bool) -> Seen:
    """The observation by page hash. Raises SeenBroken if it contradicts itself or a rule of structure."""
    result = Seen(
        pages={KV_DEVICE: {}, KV_HOST: {}},
        ends={},
        above={},
        free={KV_DEVICE: observation.free_device, KV_HOST: observation.free_host},
        held={KV_DEVICE: observation.held_device, KV_HOST: observation.held_host},
        requests=observation.requests,
        queued=observation.queued_host,
        prefetches=observation.prefetch_host,
    )
    if profile.state:
        result.pages |= {STATE_DEVICE: {}, STATE_HOST: {}}
        result.free |= {STATE_DEVICE: observation.free_device_state, STATE_HOST: observation.free_host_state}
        result.held |= {STATE_DEVICE: observation.held_device_state, STATE_HOST: observation.held_host_state}
        result.states = {STATE_DEVICE: observation.request_states, STATE_HOST: observation.prefetch_states}
    paths: list[tuple[PageHash | None, str, Segment | None]] = []
    for segment in observation.segments:
        if not -1 <= segment.parent < len(paths):
            raise SeenBroken("HC-TREE-01", f"segment {len(paths)} names parent {segment.parent}")
        prior, text, above = (None, "", None) if segment.parent < 0 else paths[segment.parent]
        _judge_segment(segment, above, profile, write_back)
        filed = _file(result, segment, prior, text, profile)
        paths.append(filed)
        result.above[filed[0]] = above
    return result


def _judge_segment(segment: Segment, above: Segment | None, profile: Profile, write_back: bool) -> None:
    """What must hold between a segment and the one above it."""
    name = ".".join(map(str, segment.tokens))
    pages = pages_of(segment.tokens, profile.sizes.page_size, profile.bigram)
    if not pages or len(pages) * profile.sizes.page_size + profile.bigram != len(segment.tokens):
        raise SeenBroken("HC-TREE-02", f"segment [{name}] is not a positive number of whole pages")
    for pool_name, held in ((KV_DEVICE, segment.device), (KV_HOST, segment.host)):
        if held is not None and len(held) != len(pages):
            text = f"segment [{name}] of {len(pages)} pages has {len(held)} on {TIER[pool_name]}"
            raise SeenBroken("HC-TREE-02", text, Differs(kind="structure", pool=pool_name))
    for pool_name, held in ((STATE_DEVICE, segment.device_state), (STATE_HOST, segment.host_state)):
        if held is not None and len(held) != 1:
            text = f"segment [{name}] has {len(held)} states on {TIER[pool_name]}"
            raise SeenBroken("HC-TREE-02", text, Differs(kind="structure", pool=pool_name))
    if segment.device is None and segment.host is None:
        raise SeenBroken("HC-TREE-03", f"segment [{name}] has no copy on any tier")
    if above is None:
        return
    if above.extra != segment.extra:
        raise SeenBroken("HC-TREE-05", f"segment [{name}] is in namespace {segment.extra}, its parent in {above.extra}",
                         Differs(kind="structure", what="namespace"))  # fmt: skip
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
        raise SeenBroken("HC-TREE-05", f"two segments hold the page that ends {result.names[hashes[0]]}",
                         Differs(kind="structure", what="held twice"))  # fmt: skip
    for index, digest in enumerate(hashes):
        text += ("." if text else "") + ".".join(map(str, pages[index][: profile.sizes.page_size]))
        result.names[digest] = text if segment.extra is None else f"{segment.extra}/{text}"
        for pool_name, held in ((KV_DEVICE, segment.device), (KV_HOST, segment.host)):
            if held is not None:
                result.pages[pool_name][digest] = held[index]
    for pool_name, state in ((STATE_DEVICE, segment.device_state), (STATE_HOST, segment.host_state)):
        if state is not None and profile.state:
            result.pages[pool_name][hashes[-1]] = state[0]
    result.ends[hashes[-1]] = segment
    return hashes[-1], text, segment


def judge_owners(view: Seen, profile: Profile) -> None:
    """Every page of every pool has exactly one holder. Raises SeenBroken (HC-PAGE-01, 02, 03)."""
    for pool_name, size in profile.pool_sizes.items():
        what = CALLED[pool_name]
        holders = [*view.pages[pool_name].values(), *view.free[pool_name], *view.held[pool_name]]
        holders += [page for pages in _others(view, pool_name).values() for page in pages]
        if pool_name == KV_HOST:
            holders += view.queued
        held = set(holders)
        if len(holders) == len(held) == size and min(held) == 0 and max(held) == len(held) - 1:
            continue
        for page, count in Counter(holders).items():
            if count > 1:
                raise SeenBroken("HC-PAGE-01", f"{what} {page} has {count} holders: {_who(view, pool_name, page)}",
                                 Differs(kind="holders", pool=pool_name, direction="not expected"))  # fmt: skip
        missing = sorted(set(range(size)) - set(holders))
        if missing:
            requirement = "HC-PAGE-02" if TIER[pool_name] == "device" else "HC-PAGE-03"
            raise SeenBroken(requirement, f"{what} {', '.join(map(str, missing))} is owned by nobody",
                             Differs(kind="holders", pool=pool_name, direction="missing"))  # fmt: skip
        raise SeenBroken("HC-PAGE-01", f"{what}s beyond the pool of {size} are held",
                         Differs(kind="holders", pool=pool_name, what="beyond the pool"))  # fmt: skip


CALLED: dict[PoolName, str] = {
    KV_DEVICE: "device page",
    KV_HOST: "host page",
    STATE_DEVICE: "device state slot",
    STATE_HOST: "host state slot",
}
"""What one page of the pool is called in texts."""


def _others(view: Seen, pool_name: PoolName) -> dict[str, Pages]:
    """What requests hold on device, or prefetches on host, by their names."""
    if pool_name == KV_DEVICE:
        return view.requests
    return view.prefetches if pool_name == KV_HOST else view.states[pool_name]


def _who(view: Seen, pool_name: PoolName, page: int) -> str:
    """Everybody who holds the page, in words."""
    found = [f"node page {view.names[d]}" for d, held in view.pages[pool_name].items() if held == page]
    found += ["the free list"] * view.free[pool_name].count(page)
    found += ["an operation"] * view.held[pool_name].count(page)
    if pool_name == KV_HOST:
        found += ["the release queue"] * view.queued.count(page)
    kind = "request" if TIER[pool_name] == "device" else "prefetch"
    found += [f"{kind} {name}" for name, pages in _others(view, pool_name).items() for held in pages if held == page]
    return ", ".join(found)
