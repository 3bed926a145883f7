"""Workloads: what requests find in the cache, counted otherwise too, and every rule judged while they run."""

import gc
import tracemalloc
from pathlib import Path

import pytest

from hicache_ref.adapters.reference import ReferenceAdapter
from hicache_ref.model import Model
from hicache_ref.model.state import Node
from hicache_ref.search.finding import Found
from hicache_ref.search.requests import KINDS, Kind, Request, synthetic
from hicache_ref.search.serving import Server
from hicache_ref.search.stepping import ModelStepper
from hicache_ref.search.workload import JudgedStepper, WorkloadReport, run_workload
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import KV_DEVICE, Pages, PoolName
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import EVICTION_POLICIES, RULES, EvictionPolicy, Profile, Sizes


def prompts(*blocks: tuple[int, ...]) -> list[Request]:
    """Requests of these blocks that generate nothing."""
    return [Request(0, each, 0) for each in blocks]


@pytest.mark.parametrize("kind", KINDS)
def test_where_everything_fits_all_that_was_seen_is_found(kind: Kind) -> None:
    """Goal: hits are right. Method: a block id names the blocks before it too, so that a set of ids tells the hits."""
    requests = list(synthetic(kind, 3, 200))
    seen: set[int] = set()
    known = 0
    for request in requests:
        known += sum(block in seen for block in request.blocks)
        seen.update(request.blocks)
    total = sum(len(request.blocks) for request in requests)

    report = run_workload(requests, device_pages=len(seen), host_pages=len(seen))

    assert () == report.violations
    assert (200, total) == (report.requests, report.pages)
    assert {"device": known, "host": 0, "miss": total - known} == report.hits
    assert report.operations > 200


def test_what_left_the_device_is_found_on_host() -> None:
    """Goal: a story that can be followed by hand. Method: three device pages, and prompts that take turns on them."""
    report = run_workload(prompts((1, 2), (3, 4), (1, 2)), device_pages=3, host_pages=9)

    assert {"device": 0, "host": 2, "miss": 4} == report.hits


def test_of_a_prompt_that_does_not_fit_the_first_pages_are_cached() -> None:
    """Goal: too long a prompt is no mistake. Method: five pages in a pool of three, twice."""
    report = run_workload(prompts((1, 2, 3, 4, 5), (1, 2, 3, 4, 5), ()), device_pages=3, host_pages=9)

    assert {"device": 3, "host": 0, "miss": 7} == report.hits
    assert (3, ()) == (report.requests, report.violations)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("policy", ["write_through", "write_through_selective", "write_back"])
def test_in_small_pools_every_step_keeps_every_rule(rules: str, policy: str) -> None:
    """Goal: scheduling as it is done, judged whole. Method: pools that are always full, the full check each step."""
    profile = Profile(
        rules=RULES[rules].model_copy(update={"write_policy": policy}), sizes=Sizes(device_pages=40, host_pages=60)
    )
    stepper = ModelStepper(profile)
    server = Server(stepper)
    requests = list(synthetic("conversation", 5, 25))
    for request in requests:
        server.serve(request.blocks)
    stepper.step(ops.Audit())

    assert sum(len(request.blocks) for request in requests) == sum(server.hits.values())
    assert (set(), {}, {}) == (
        set(stepper.model.state.requests),
        stepper.model.state.tickets,
        stepper.model.state.receipts,
    )
    assert policy == "write_through_selective" or server.hits["host"] > 0


class Counting(ReferenceAdapter):
    """A healthy implementation that counts what it is asked."""

    count = 0

    def apply(self, operation: ops.Operation) -> Outcome:
        """One more."""
        self.count += 1
        return super().apply(operation)


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_an_implementation_is_told_the_same_and_answers_the_same(eviction: EvictionPolicy) -> None:
    """Goal: large caches can be compared too. Method: an implementation that counts what it is asked; one run alone."""
    profile = Profile(rules=RULES["reference"].model_copy(update={"eviction": eviction}))
    asked = Counting(Model)

    alone, report = (
        run_workload(synthetic("agent", 2, 60), device_pages=60, host_pages=90, profile=profile, adapter=adapter)
        for adapter in (None, asked)
    )

    assert () == report.violations
    assert (alone.operations, alone.hits) == (report.operations, report.hits)
    assert report.operations == asked.count
    assert min(report.hits["device"], report.hits["miss"]) > 0


class KeepsHalf(Model):
    """A fault: matches forget the last node."""

    def resident_end(self, node: Node) -> Node:
        """One node too high, where there is one."""
        end = super().resident_end(node)
        return end if end.parent < 0 else self.state.nodes[end.parent]


class Leaks(Model):
    """A fault: of several pages that are given up the last is not free."""

    def release(self, pool_name: PoolName, pages: Pages) -> None:
        """One page less."""
        super().release(pool_name, pages[:-1] if pool_name == KV_DEVICE and len(pages) > 1 else pages)


def test_an_implementation_that_answers_otherwise_ends_the_run() -> None:
    """Goal: a difference is seen and said. Method: a faulty model as the implementation."""
    report = run_workload(
        prompts((1, 2), (1, 2), (1, 2)), device_pages=9, host_pages=9, adapter=ReferenceAdapter(KeepsHalf)
    )

    (violation,) = report.violations
    assert violation.startswith("HC-CONF-02 at match_prefix: expected")
    assert 2 == report.requests


def test_a_broken_rule_ends_the_run() -> None:
    """Goal: the checks of large caches check. Method: a faulty model under them."""
    server = Server(JudgedStepper(Profile(sizes=Sizes(device_pages=4, host_pages=9)), Leaks))

    server.serve((1, 2))
    server.serve((3, 4))
    with pytest.raises(Found) as found:
        server.serve((5, 6))

    assert "requirement" == found.value.finding.source


def test_a_recorded_stream_is_read_from_its_file(tmp_path: Path) -> None:
    """Goal: files and streams are one. Method: two lines with blocks of four tokens, the last block partial."""
    file = tmp_path / "requests.jsonl"
    row = '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1, 2, 3]}\n'
    file.write_text(row * 2)

    report = run_workload(file, device_pages=9, host_pages=9, page_tokens=4)

    assert (2, 4) == (report.requests, report.pages)
    assert {"device": 2, "host": 0, "miss": 2} == report.hits


@pytest.mark.long
def test_memory_is_flat() -> None:
    """Goal: long runs do not grow. Method: one stream ten times over; what is allocated after each is compared."""

    def run() -> WorkloadReport:
        return run_workload(synthetic("conversation", 11, 400), device_pages=800, host_pages=2_400)

    run()
    tracemalloc.start()
    try:
        sizes = []
        for _ in range(10):
            report = run()
            assert () == report.violations
            del report
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()

    assert max(sizes[2:]) < 1.02 * sizes[1] + 100_000
