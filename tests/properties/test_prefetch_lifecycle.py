"""Prefetches and writes through every order of their steps: the healthy model keeps the rules, faulty ones are named.

Walks draw storage operations and composites around them under drawn storage rules. Each planted fault overrides one
method of the model, after a defect that some released engine has had.
"""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from hicache_ref.model import Model
from hicache_ref.model.chooser import DrawnChooser
from hicache_ref.model.records import Backup, BackupEnded, Prefetch, PrefetchEnded, PrefetchReading
from hicache_ref.model.state import FREE, Node, Part
from hicache_ref.requirements import REQUIREMENTS
from hicache_ref.search.finding import Finding, Found
from hicache_ref.search.stepping import ModelStepper
from hicache_ref.search.walk import Plan, Walk, draw_profile
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import KV_HOST, ROOT, PageHash, Pages
from hicache_ref.vocabulary.outcomes import Done, Polled, Prefetching, Progressed, Refused
from hicache_ref.vocabulary.profile import RULES, Profile

WALKS = 140
WALKS_MAX = 250
"""How long a fault is looked for; most are found within ten walks of about a hundred steps."""

STORAGE_RULES: dict[str, tuple[object, ...]] = {
    "prefetch_allocation": ("after", "before"),
    "prefetch_clock": ("submission", "first_poll"),
    "prefetch_capacity": ("half_host", "half_host", "host_minus_device", "host_minus_device_clamped"),
    "prefetch_progress": ("polled", "live"),
    "prefetch_commit": ("poll", "progress"),
    "commit_adopts": (True, True, False),
    "cancelled_query": ("answers_0", "goes_on"),
    "give_back": ("at_once", "queued"),
    "storage_retries": (1, 2, 3),
    "attach_offers": (True, True, False),
    "hash_namespace": (True, True, False),
}


def drawn(rng: random.Random) -> Profile:
    """A profile with storage rules and batch size drawn too."""
    profile = draw_profile(rng, Profile(rules=RULES["reference"]))
    rules = profile.rules.model_copy(update={name: rng.choice(values) for name, values in STORAGE_RULES.items()})
    sizes = profile.sizes.model_copy(update={"storage_batch": rng.choice((1, 2, 2, 3))})
    return profile.model_copy(update={"rules": rules, "sizes": sizes})


def walk(seed: int, kind: type[Model] = Model) -> tuple[ModelStepper, Finding | None]:
    """One walk, and what was found in it."""
    rng = random.Random(seed)
    stepper = ModelStepper(drawn(rng), kind, chooser=DrawnChooser(rng))
    try:
        Walk(stepper, rng, Plan(steps=100), swarm=seed % 2 == 1).run()
    except Found as found:
        return stepper, found.finding
    return stepper, None


def test_prefetch_lifecycle() -> None:
    """Goal: prefetches and writes keep their rules in any order. Method: walks, every state and step judged.

    No rule of these areas may go unjudged, and no phase of a prefetch unreached.
    """
    judged: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    for seed in range(WALKS):
        stepper, found = walk(seed)
        assert found is None
        judged.update(stepper.checker.tally)
        reached.update(stepper.checker.reached)

    areas = {name for name, each in REQUIREMENTS.items() if each.area in ("PREF", "STORE", "DRAFT")}
    areas = {name for name in areas if REQUIREMENTS[name].by == "state"}
    assert set() == {name for name in areas if REQUIREMENTS[name].kind != "sometimes" and not judged[name]}
    assert set() == {f"HC-PREF-{number}" for number in range(51, 64)} - {"HC-PREF-58"} - {
        n for n in reached if reached[n]
    }


# -- planted faults ---------------------------------------------------------------------------------------------------

FAULTS: dict[str, tuple[type[Model], tuple[str, ...]]] = {}


def planted(*expected: str) -> Callable[[type[Model]], type[Model]]:
    """The faulty model is to break one of these requirements."""

    def enter(kind: type[Model]) -> type[Model]:
        FAULTS[kind.__name__] = (kind, expected)
        return kind

    return enter


@planted("HC-PAGE-01")
class TailIsReleasedTwice(Model):
    """R14: the pages that were not read go free, and wait for release as well."""

    def _retire(self, name: str) -> None:
        record = self._prefetch(name)
        super()._retire(name)
        owner = self.state.pools[KV_HOST].owner
        if name not in self.storage.records:
            self._queue(tuple(page for page in record.pages if owner[page] == FREE))


@planted("HC-XFER-01", "HC-PREF-11")
class AbortFreesWhatIsBeingRead(Model):
    """D5: an abort frees all pages, those under the worker too."""

    def on_abort(self, op: ops.Abort) -> Done:
        name = self.storage.open.get(op.rid)
        told = super().on_abort(op)
        record = self.storage.records.get(name or "")
        pool = self.state.pools[KV_HOST]
        for page in record.pages if record is not None else ():
            pool.owner[page], pool.stamp[page], pool.draft[page] = FREE, None, None
            pool.free.append(page)
        return told


@planted("HC-PREF-04")
class SecondPrefetchReplacesTheFirst(Model):
    """D30: a prefetch for a request that has one open takes its place."""

    def on_prefetch(self, op: ops.Prefetch) -> Prefetching | Refused:
        self.storage.open.pop(op.rid, None)
        return super().on_prefetch(op)


@planted("HC-PREF-19")
class LateEndIsMatchedByRequest(Model):
    """OR-6: the end of a closed prefetch closes the one that its request has open now."""

    asked_by: dict[str, str | None] = {}

    def _close(self, name: str) -> Pages:
        self.asked_by = {**self.asked_by, name: self._prefetch(name).rid}
        return super()._close(name)

    def apply_read(self, name: str, done: int) -> bool:
        closed = self._prefetch(name).rid is None
        told = super().apply_read(name, done)
        current = self.storage.open.get(self.asked_by.get(name) or "")
        if closed and current is not None:
            self._commit(self._prefetch(current))
            self._retire(current)
        return told


@planted("HC-PREF-07", "HC-BACKUP-01")
class CommitWithoutAnchor(Model):
    """SG-9601: fetched pages are hung below an anchor that has lost its host copy."""

    hanging = False

    def needs_backed_parent(self) -> bool:
        return super().needs_backed_parent() and not self.hanging

    def _commit(self, record: Prefetch) -> None:
        anchor = self.state.nodes.get(record.anchor)
        if anchor is None or anchor.id == ROOT or anchor.host is not None:
            super()._commit(record)
            return
        pages = self._close(record.id)
        self.hanging = True
        loaded = self._hang(anchor, record, pages) if pages else 0
        self.hanging = False
        self.storage.loaded.pop(str(record.rid), None)
        if loaded:
            self.storage.loaded[str(record.rid)] = loaded
        self.storage.believed.update(record.hashes[: len(pages)])


@planted("HC-STORE-10")
class OnlyTheLastFragmentIsOffered(Model):
    """D1: of a node that was split under its backup only the lower half is owed to storage."""

    def acknowledged(self, part: Part) -> None:
        for node in self.owners(KV_HOST, part.host)[-1:]:
            super().acknowledged(Part(component=part.component, device=part.device, host=node.host or ()))


@planted("HC-STORE-02")
class NothingIsOfferedTwice(Model):
    """D38: what could not be put is never tried again."""

    def offer(self, node: Node) -> None:
        kept = dict(self.storage.owed)
        self.storage.owed = {digest: tries for digest, tries in kept.items() if not tries}
        super().offer(node)
        self.storage.owed = kept


@planted("HC-LEAF-02", "HC-EVICT-04", "HC-PREF-03")
class AnchorIsNotPinned(Model):
    """I25: the node below which pages are to come is evicted like any other."""

    def pinned_by(self, node: Node) -> set[str]:
        return {name for name in super().pinned_by(node) if isinstance(self.storage.records[name], Backup)}


@planted("HC-PREF-09")
class AbortKeepsTheCount(Model):
    """SG-30053: an abort does not lower the count of pages asked for."""

    def on_abort(self, op: ops.Abort) -> Done:
        occupied = self.storage.occupied
        told = super().on_abort(op)
        self.storage.occupied = occupied
        return told


@planted("HC-PAGE-03", "HC-PAGE-04", "HC-LIFE-08", "HC-STORE-13")
class DetachDropsWhatIsClosed(Model):
    """D17: a detach forgets reads whose request has gone, and their pages."""

    def on_detach(self, op: ops.Detach) -> Done | Refused:
        for name, record in list(self.storage.records.items()):
            if isinstance(record, PrefetchReading) and record.rid is None:
                del self.storage.records[name]
                self.storage.reads = [each for each in self.storage.reads if each[0] != name]
        return super().on_detach(op)


@planted("HC-PREF-06")
class CountedBeforeItIsThere(Model):
    """R15: a short batch counts as whole."""

    def on_read_done(self, op: ops.ReadDone) -> Done:
        told = super().on_read_done(op)
        record = self.storage.records[op.id]
        if isinstance(record, PrefetchEnded) and record.done < len(record.pages):
            self.storage.records[op.id] = record.model_copy(update={"done": record.done + 1})
            self.storage.reads[-1] = (op.id, record.done + 1)
        return told


@planted("HC-PAGE-05")
class TailIsQueuedAndKept(Model):
    """D4: pages without a hit wait for release, and stay with the prefetch."""

    def _queue(self, pages: Pages) -> None:
        owner = self.state.pools[KV_HOST].owner
        held = [owner[page] for page in pages]
        super()._queue(pages)
        for page, holder in zip(pages, held, strict=True):
            owner[page] = holder


@planted("HC-STORE-11", "HC-PREF-02", "HC-PREF-06")
class ErrorEndsTheWorker(Model):
    """D20: after a read that raised, no end of it is ever applied."""

    def on_read_done(self, op: ops.ReadDone) -> Done:
        told = super().on_read_done(op)
        if op.raised:
            self.storage.reads.pop()
        return told


@planted("HC-STORE-05")
class SecondBatchHasNoPrefix(Model):
    """D10: where nothing came before the first batch, nothing is told before the second."""

    def told_prefix(self, record: Prefetch | Backup, start: int) -> tuple[PageHash, ...]:
        return super().told_prefix(record, start) if record.prefix else ()


@planted("HC-HASH-04", "HC-HASH-01")
class NamespaceIsNotHashed(Model):
    """D9: storage is asked for a key in a namespace as if it were in none."""

    def storage_seed(self, extra: str | None) -> PageHash | None:
        return None


@planted("HC-STORE-12", "HC-STORE-10")
class FailureIsTakenForSuccess(Model):
    """SG-39701: a write that was cut short counts as done."""

    def apply_write(self, name: str) -> bool:
        record = self.storage.records[name]
        assert isinstance(record, BackupEnded)
        self.storage.records[name] = record.model_copy(update={"done": len(record.hashes)})
        return super().apply_write(name)


@planted("HC-LIFE-02", "HC-LIFE-06")
class ResetForgetsReads(Model):
    """D12: a reset drops running reads, whose worker goes on writing."""

    def on_reset(self, op: ops.Reset) -> Done | Refused:
        records = self.storage.records
        self.storage.records = {n: r for n, r in records.items() if not isinstance(r, PrefetchReading)}
        self.storage.open, self.storage.reads = {}, []
        return super().on_reset(op)


@planted("HC-LIFE-07", "HC-CONF-10")
class RefusedAttachLeavesItsPolicy(Model):
    """D18: settings of a backend that was refused are in force."""

    def on_attach(self, op: ops.Attach) -> Done | Refused:
        told = super().on_attach(op)
        self.storage.settings = op.settings
        return told


@planted("HC-PREF-12")
class ToldAgain(Model):
    """A request is told its pages each time that it asks."""

    def on_progress(self, op: ops.Progress) -> Progressed:
        told = super().on_progress(op)
        if told.loaded:
            self.storage.loaded[op.rid] = told.loaded
        return told


@planted("HC-PREF-16")
class AllIsReleasedAtOnce(Model):
    """A poll empties the release queue, whatever was agreed on."""

    def on_poll(self, op: ops.Poll) -> Polled:
        return super().on_poll(op.model_copy(update={"releases": len(self.storage.release)}))


@planted("HC-PREF-15")
class NoLimit(Model):
    """Any number of pages may be asked for."""

    def prefetch_capacity(self) -> float:
        return float("inf")


@planted("HC-EVENT-01")
class CommitIsNotPublished(Model):
    """What was fetched is on host, and nobody learns of it."""

    def _place_fetched(self, node: Node, pages: Pages, record: Prefetch) -> None:
        published = len(self.events)
        super()._place_fetched(node, pages, record)
        del self.events[published:]


@planted("HC-DRAFT-04", "HC-DRAFT-01")
class DraftIsTakenForRead(Model):
    """A draft page that storage did not have is valid."""

    def on_read_done(self, op: ops.ReadDone) -> Done:
        taken = self.profile.draft and self.storage.settings.draft
        return super().on_read_done(op.model_copy(update={"draft": op.pages}) if taken else op)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault: str) -> None:
    """Goal: the rules are worth having. Method: the same walks under a model with one method overridden."""
    kind, expected = FAULTS[fault]
    found = next((end for end in (walk(seed, kind)[1] for seed in range(WALKS_MAX)) if end is not None), None)

    assert found is not None
    assert {found.requirement, *found.falls} & set(expected), found
