"""The healthy model, slow in lawful ways: as an implementation beside the model it is as good as any."""

from collections.abc import Sequence

from hicache_ref.model import Model, Step
from hicache_ref.model.chooser import POLICY, Chooser
from hicache_ref.vocabulary.ids import KV_HOST, STATE_HOST, Pages, PoolName, TicketId
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Operation, Poll
from hicache_ref.vocabulary.outcomes import Polled
from hicache_ref.vocabulary.profile import Profile


class Slow(Model):
    """Applies in a poll no more ends of a kind than `most` says."""

    most: dict[str, int] = {}
    every = 1
    """In so many polls it does so once; in the others it applies none of these kinds."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self.polls = 0

    def on_poll(self, op: Poll) -> Polled:
        """As many as it likes."""
        self.polls += 1
        rests = bool(self.polls % self.every)
        mine = {kind: min(getattr(op, kind), 0 if rests else most) for kind, most in self.most.items()}
        return super().on_poll(op.model_copy(update=mine))


class OneWriteAPoll(Slow):
    """One finished copy to host a poll."""

    most = {"backups": 1}


class OneLoadAPoll(Slow):
    """One finished copy to device a poll."""

    most = {"loads": 1}


class OneOfEachAPoll(Slow):
    """One end of each kind a poll."""

    most = dict.fromkeys(("backups", "loads", "answers", "reads", "writes", "releases"), 1)


class LateAnswers(Slow):
    """Answers of queries in every third poll."""

    most, every = {"answers": 9}, 3


class LateReads(Slow):
    """Batches read in every third poll."""

    most, every = {"reads": 9}, 3


class LateReleases(Slow):
    """Pages that wait to be freed, and ends of writes, in every third poll."""

    most, every = {"releases": 9, "writes": 9}, 3


class RarelyAtAll(Slow):
    """Anything in every fourth poll."""

    most, every = dict.fromkeys(OneOfEachAPoll.most, 9), 4


class _FromTheFront(Chooser):
    """Chooses as another does, but for host pages: those that were free longest, in falling order."""

    def __init__(self, other: Chooser) -> None:
        self.other = other

    def pages(self, pool: PoolName, free: Sequence[int], count: int) -> Pages:
        """Others than a plain model takes."""
        return tuple(free[:count])[::-1] if pool in (KV_HOST, STATE_HOST) else self.other.pages(pool, free, count)

    def victim(self, pool: PoolName, minima: Sequence[Key]) -> int:
        """As the other."""
        return self.other.victim(pool, minima)

    def copy_result(self, ticket: TicketId) -> bool:
        """As the other."""
        return self.other.copy_result(ticket)

    def latitude(self, name: str, options: Sequence[str]) -> str:
        """As the other."""
        return self.other.latitude(name, options)


class OtherHostPages(Model):
    """Host pages are handed out in another order."""

    def step(self, op: Operation, choose: Chooser = POLICY) -> Step:
        """As any model, from other pages."""
        return super().step(op, _FromTheFront(choose))


LAWFUL: tuple[type[Model], ...] = (
    OneWriteAPoll, OneLoadAPoll, OneOfEachAPoll, LateAnswers, LateReads, LateReleases, RarelyAtAll, OtherHostPages,
)  # fmt: skip
