"""Lockstep: the operation is applied to the implementation, then to the model, and everything seen is compared.

Order of a step: ask the model whether the operation is valid, apply it to the implementation, observe, apply it to
the model with a chooser that adopts what the implementation was free to choose, compare.
"""

from collections.abc import Callable, Collection, Sequence

from hicache_ref.model import Model, Step
from hicache_ref.model.chooser import PolicyChooser, ReplayChooser
from hicache_ref.model.records import BackupWriting, PrefetchQueued, PrefetchReading
from hicache_ref.model.state import Pass
from hicache_ref.oracle.compare import Comparison
from hicache_ref.oracle.content import Content
from hicache_ref.oracle.differing import Difference
from hicache_ref.oracle.polls import Polls
from hicache_ref.oracle.seen import Seen, SeenBroken, judge_owners, seen
from hicache_ref.oracle.triggers import TRIGGERS
from hicache_ref.requirements import Broken, Checker
from hicache_ref.search.finding import Differs, Finding, Found, Recorded, crash
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.adapter import Adapter, Description
from hicache_ref.vocabulary.choices import Choice
from hicache_ref.vocabulary.events import Event
from hicache_ref.vocabulary.ids import (
    KV,
    KV_DEVICE,
    KV_HOST,
    STATE,
    STATE_DEVICE,
    STATE_HOST,
    TIER,
    PageHash,
    Pages,
    PoolName,
    TicketId,
)
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.observation import Level, Observation
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Audited, Outcome, Polled, Prefetching, Refused
from hicache_ref.vocabulary.profile import Profile

RAISED = "HC-CONF-01"
ANSWERED = "HC-CONF-02"
OWN_CHECK = "HC-CONF-12"
ORACLE_ITSELF = "HC-CONF-13"

Observer = Callable[[int, Operation, Outcome, Observation], None]

_ENDS: dict[str, type] = {"query_done": PrefetchQueued, "read_done": PrefetchReading, "write_done": BackupWriting}
"""What the world reports of storage -> the stage that ends by it."""


class ObservedChooser(PolicyChooser):
    """Adopts what the implementation did where the rules leave a choice; remembers which pages the model took.

    What was observed is asked first, then what was recorded; where neither says it, the answer is the plain one.
    """

    def __init__(self) -> None:
        self.observation: Observation | None = None
        self.recorded = ReplayChooser(())
        self.taken: set[tuple[PoolName, int]] = set()

    def pages(self, pool: PoolName, free: Sequence[int], count: int) -> Pages:
        """Any, for pages are compared up to renaming; a page taken in this step may be renamed."""
        pages = super().pages(pool, free, count)
        self.taken.update((pool, page) for page in pages)
        return pages

    def victim(self, pool: PoolName, minima: Sequence[Key]) -> int:
        """As recorded."""
        return self.recorded.victim(pool, minima)

    def copy_result(self, ticket: TicketId) -> bool:
        """It succeeded if the implementation reports a copy that ended inside the step; as recorded if it is blind."""
        if self.observation is None or self.observation.level == "counts":
            return self.recorded.copy_result(ticket)
        return any(copy.ticket is None and copy.to == "host" for copy in self.observation.copies)


class Lockstep:
    """One implementation beside one model, from a reset on."""

    def __init__(self, adapter: Adapter, description: Description, profile: Profile, level: Level,
                 checker: Checker) -> None:  # fmt: skip
        self.adapter = adapter
        self.description = description
        self.profile = profile
        self.level: Level = level
        self.model = Model(profile)
        self.checker = checker
        self.chooser = ObservedChooser()
        self.content = Content()
        self.comparison = Comparison(profile)
        self.polls = Polls()
        self.ours: Step | None = None
        """The model's answer to the last step; None if the implementation crashed in it."""

        self.saw_every_step = level != "counts"
        """Since the last reset; without that, contents are not known."""

        self.events: list[Event] = []
        """Expected, and not yet looked for."""

        self.askers: dict[str, str] = {}
        """Storage operation -> the request that asked for it."""

        self.watched: Collection[str] = ()
        """The triggers that are looked for in each step."""

        self.met: set[str] = set()
        """Which of them steps were, and facts of the model in steps."""

        self.left_out: Collection[str] = ()
        """Triggers that no step of a search is to be, for the implementation is known to go wrong after them."""

        self.only_valid = False
        """Whether no step of a search is to break a precondition, after which the implementation may do anything."""

        self.forgives: Callable[[Finding], bool] = lambda finding: False
        """Whether the run goes on after a difference in what was published, on which nothing later depends."""

        self.steps: list[Recorded] = []
        self.before_step: Callable[[int, Operation], None] | None = None
        self.after_step: Observer | None = None
        checker.start(self.model.state)
        adapter.reset(profile)

    def step(self, op: Operation, choices: Sequence[Choice] | None = None) -> Outcome:
        """The operation has happened on both sides and nothing differs. Raises Found."""
        index = len(self.steps)
        if self.watched and self.model.requires(op) is None:
            self.met.update(name for name in self.watched if self.is_trigger(op, name))
        self.steps.append(Recorded(op, tuple(choices or ())))
        self.chooser.recorded = ReplayChooser(choices or ())
        self.ours = None
        if self.before_step is not None:
            self.before_step(index, op)
        theirs, observation = self._apply(op)
        if self.after_step is not None:
            self.after_step(index, op, theirs, observation)
        agreed, wrong = self._agreed(op, theirs)
        ours = self.ours = self._model_step(agreed, observation)
        self.met.update(ours.facts)
        try:
            if wrong is not None:
                raise wrong
            self._compare(op, ours, theirs, observation)
        except (Difference, SeenBroken) as found:
            raise Found(self._finding(found, op, ours, theirs)) from found
        if isinstance(op, ops.Prefetch) and isinstance(theirs, Prefetching):
            self.askers[theirs.id] = op.rid
        return theirs

    @staticmethod
    def _finding(found: Difference | SeenBroken, op: Operation, ours: Step, theirs: Outcome) -> Finding:
        kinds = (ours.outcome.kind, theirs.kind)
        return Finding(found.requirement, found.text, op.op, "difference", kinds, differs=found.differs,
                       facts=ours.facts)  # fmt: skip

    def is_trigger(self, op: Operation, name: str) -> bool:
        """Whether the step, if it may happen now, would be this trigger."""
        return TRIGGERS[name](op, self.model, self.askers)

    def leaves_out(self, op: Operation) -> bool:
        """Whether a walk, or a search for a smaller trace, is not to make this step: out of turn, invalid, or known."""
        if self.model.requires(op) is not None:
            return self.only_valid
        return self._is_out_of_turn(op) or any(self.is_trigger(op, name) for name in self.left_out)

    def _is_out_of_turn(self, op: Operation) -> bool:
        """Whether the implementation cannot come to this step now, though the model can."""
        return self._is_out_of_order(op) or self._needs_match_first(op) or self._needs_rest_first(op)

    def _is_out_of_order(self, op: Operation) -> bool:
        """Whether storage work that was submitted earlier has to end before what this step reports."""
        if self.description.storage_order == "any" or op.op not in _ENDS:
            return False
        stage = _ENDS[op.op]
        waiting = (name for name, each in self.model.state.storage.records.items() if isinstance(each, stage))
        return next(waiting, None) != getattr(op, "id", None)

    def _needs_match_first(self, op: Operation) -> bool:
        """Whether the step prefetches below a part of a node, which the implementation's caller has split before."""
        if not isinstance(op, ops.Prefetch) or not self.description.matches_first:
            return False
        model = self.model
        found = model.look(model.pages(op.key), op.key.extra)
        return found.length < model.depth(found.node)

    def _needs_rest_first(self, op: Operation) -> bool:
        """Whether an attach brings a write policy while something runs, which the implementation's caller waits for."""
        if not isinstance(op, ops.Attach) or op.write_policy is None:
            return False
        when = self.description.attach_policies
        return when == "never" or (when == "idle" and bool(self.model.pending()))

    def _apply(self, op: Operation) -> tuple[Outcome, Observation]:
        """The implementation's answer and what is seen of it then. Raises Found for a crash."""
        try:
            together = getattr(self.adapter, "step", None)
            if together is not None:
                answer: tuple[Outcome, Observation] = together(op, self.level)
                return answer
            return self.adapter.apply(op), self.adapter.observe(self.level)
        except Exception as error:
            raise Found(crash(error, op, RAISED)) from error

    def _agreed(self, op: Operation, theirs: Outcome) -> tuple[Operation, Difference | None]:
        """The step as the model makes it, and what is wrong with what the implementation applied in it."""
        if not isinstance(op, ops.Poll) or not isinstance(theirs, Polled) or self.model.requires(op) is not None:
            return op, None
        return self.polls.agreed(op, theirs, self.model)

    def _model_step(self, op: Operation, observation: Observation) -> Step:
        """The model's step, checked; what it breaks by itself is a fault of ours."""
        self.chooser.observation = observation
        self.chooser.taken.clear()
        self.ended_pass: Pass | None = None
        self.batch_read: PrefetchReading | None = None
        if isinstance(op, ops.ReadDone):
            record = self.model.state.storage.records.get(op.id)
            self.batch_read = record if isinstance(record, PrefetchReading) else None
        if isinstance(op, ops.ForwardDone):
            self.ended_pass = self.model.state.passes.get(op.rid)
        try:
            step = self.model.step(op, self.chooser)
            self.checker.check(op, step, self.model.state)
            if isinstance(step.outcome, Audited) and not step.outcome.pending:
                self.checker.check_quiescent(self.model.state)
        except Broken as broken:
            raise Found(Finding(broken.requirement, broken.text, op.op, "oracle", falls=broken.falls)) from broken
        except (AssertionError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise Found(crash(error, op, ORACLE_ITSELF, "oracle")) from error
        return step

    def _compare(self, op: Operation, ours: Step, theirs: Outcome, observation: Observation) -> None:
        """Everything that was seen equals what the model says. Raises Difference or SeenBroken."""
        if observation.self_check is not None:
            raise Difference(OWN_CHECK, f"the implementation's own check complains: {observation.self_check}",
                             Differs(kind="own check"))  # fmt: skip
        if ours.outcome.kind != theirs.kind:
            raise Difference(ANSWERED, f"expected {_say(ours.outcome)}, was told {_say(theirs)}",
                             Differs(kind="answer", what=self._answers(ours, theirs, observation)))  # fmt: skip
        view: Seen | None = None
        self.comparison.tree = observation.level in ("tree", "bytes")
        if observation.level != "counts":
            view = seen(observation, self.profile, self.model.state.policy == "write_back")
            judge_owners(view, self.profile)
            self.comparison.residency(self.model.state, view, ours)
        self.comparison.counts(self.model.state, observation.counts)
        if view is not None:
            self.comparison.rename(self.model.state, view, self.chooser.taken)
        else:
            self.comparison.learn(self.model.state, ours.outcome, theirs, self.chooser.taken)
        self.comparison.outcome(ours.outcome, theirs)
        self.comparison.told_to_stop(self.model.state, observation.told_to_stop)
        self._compare_policy(op, observation)
        self._compare_events(op, ours, theirs, observation)
        emptied = isinstance(op, ops.Reset) and ours.outcome.kind == "done"
        self.saw_every_step = view is not None and (self.saw_every_step or emptied)
        if view is not None and self.saw_every_step:
            self._follow_content(op, ours, observation)
            self.comparison.content(self.model.state, self.content, view)

    def _answers(self, ours: Step, theirs: Outcome, observation: Observation) -> str:
        """What was told and expected, by the model's reason if it refuses; and that no room was made, if none was."""
        told = ours.outcome
        expected = f"refused {told.why}" if isinstance(told, Refused) else told.kind
        idle = isinstance(theirs, Refused) and self._evicted_nothing(ours, observation)
        return f"{theirs.kind}, expected {expected}{', nothing evicted' if idle else ''}"

    def _evicted_nothing(self, ours: Step, observation: Observation) -> bool:
        """Whether the model evicted in this step, and all of that is still there."""
        if not ours.victims or observation.level == "counts":
            return False
        try:
            view = seen(observation, self.profile, self.model.state.policy == "write_back")
        except SeenBroken:
            return False
        return all(digest in view.pages[pool_name] for pool_name, digest in ours.victims)

    def _compare_policy(self, op: Operation, observation: Observation) -> None:
        """The write policy in force is as an attach has left it (HC-LIFE-07), or else as it was set (HC-CONF-03)."""
        ours, theirs = self.model.state.policy, observation.write_policy
        if theirs is not None and theirs != ours:
            requirement = "HC-LIFE-07" if isinstance(op, ops.Attach) else "HC-CONF-03"
            differs = Differs(kind="field", what="write_policy", direction="instead")
            raise Difference(requirement, f"the write policy in force is {theirs}, expected {ours}", differs)

    def _compare_events(self, op: Operation, ours: Step, theirs: Outcome, observation: Observation) -> None:
        """What was published since the last look is what the model published. Raises Difference."""
        self.events += ours.events
        if observation.events is None:
            return
        expected = tuple(self.events)
        self.events.clear()
        try:
            self.comparison.events(expected, observation.events)
        except Difference as difference:
            if not self.forgives(self._finding(difference, op, ours, theirs)):
                raise

    def _follow_content(self, op: Operation, ours: Step, observation: Observation) -> None:
        """The stamps of the implementation's pages follow this step."""
        if observation.contents is not None:
            self.content.read(observation.contents)
            return
        rename = self.comparison.renamed
        taken = {name: {rename(pool, page) for pool, page in self.chooser.taken if pool == name} for name in TIER}
        self.content.emptied(KV_HOST, taken[KV_HOST])
        self.content.emptied(STATE_HOST, taken[STATE_HOST])
        self.content.issued(observation)
        # A slot may have been copied to host in this step before a request took it, and been filled for it at once.
        filled = {slot for copy in observation.copies if copy.to == "request" for slot in copy.target_states}
        self.content.emptied(STATE_DEVICE, taken[STATE_DEVICE] - filled)
        if ours.outcome.kind in ("refused", "invalid"):
            return
        if isinstance(op, ops.Reset):
            self.content = Content()
        elif isinstance(op, ops.TakePages):
            self.content.taken(observation.requests.get(op.rid, ()))
        elif isinstance(op, ops.Forward) and op.rid in self.model.state.passes:
            begun = self.model.state.passes[op.rid]
            pairs = zip(begun.pages, begun.hashes, strict=True)
            self.content.pass_began({rename(KV_DEVICE, page): digest for page, digest in pairs})
        elif self.ended_pass is not None:
            ended = self.ended_pass
            wrote: dict[int, PageHash | None] = {}
            for page, digest in zip(ended.pages, ended.hashes, strict=True):
                wrote[rename(KV_DEVICE, page)] = None if ended.doomed else digest
            self.content.pass_ended(wrote)
            for slot in ended.state:
                self.content.state_changed(rename(STATE_DEVICE, slot), None if ended.doomed else ended.hashes[-1])
        elif self.batch_read is not None and isinstance(op, ops.ReadDone):
            start, stop = self.batch_read.done, self.batch_read.done + op.pages
            pairs = zip(self.batch_read.pages[start:stop], self.batch_read.hashes[start:stop], strict=True)
            self.content.fetched(KV_HOST, {rename(KV_HOST, page): digest for page, digest in pairs})
            end = self.batch_read.hashes[-1]
            slots = self.batch_read.states if op.state else ()
            self.content.fetched(STATE_HOST, {rename(STATE_HOST, slot): end for slot in slots})
        elif isinstance(op, ops.CopyDone | ops.CopyFailed):
            ticket = self.model.state.tickets.get(op.ticket)
            parts = ticket.parts[: ticket.good] if ticket is not None else ()
            pages = sum(len(part.device) for part in parts if part.component == KV)
            # A copy to a request is over as it ends: its one state is in place, or it failed.
            states = sum(part.component == STATE for part in parts) if ticket else isinstance(op, ops.CopyDone)
            self.content.ended(op.ticket, pages, states)


def _say(outcome: Outcome) -> str:
    """The outcome in a few words."""
    values = outcome.model_dump(exclude_none=True).values()
    return " ".join(str(value) for value in values if value not in ((), None))
