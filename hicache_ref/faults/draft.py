"""Faults of draft pages: left behind, taken for there, of another page, or allowed to cost more than guesses."""

from hicache_ref.faults.catalogue import OWN, plant, plant_in_storage
from hicache_ref.model import Model
from hicache_ref.model.records import PrefetchReading
from hicache_ref.model.state import FREE, Ticket
from hicache_ref.vocabulary.ids import KV_DEVICE, KV_HOST, Pages, PoolName
from hicache_ref.vocabulary.operations import ForwardDone, ReadDone, RegisterDraft, Reset, WriteDone
from hicache_ref.vocabulary.outcomes import Done, Refused


@plant("backup-leaves-draft", "K14", "SG-21125", expected="HC-DRAFT-02")
class BackupLeavesDraft(Model):
    """A backup copies the target's pages and not the draft model's.

    SGLang: both models share indices and not pools, and what came back for the draft model was random.
    """

    def land(self, ticket: Ticket, good: int) -> None:
        """The host's draft pages are invalid."""
        super().land(ticket, good)
        for part in ticket.parts[:good] if ticket.to == "host" else ():
            for page in part.host:
                self.state.pools[KV_HOST].draft[page] = None


@plant("pass-leaves-draft", "K14", OWN, expected="HC-DRAFT-03")
class PassLeavesDraft(Model):
    """A forward pass writes its pages and not those of the draft model."""

    def on_forward_done(self, op: ForwardDone) -> Done:
        """They are as they were."""
        pages = self.state.passes[op.rid].pages
        told = super().on_forward_done(op)
        for page in pages:
            self.state.pools[KV_DEVICE].draft[page] = None
        return told


@plant("draft-without-model", "K14", OWN, expected="HC-DRAFT-06")
class DraftWithoutModel(Model):
    """A forward pass makes draft pages valid although there is no draft model to write them."""

    def on_forward_done(self, op: ForwardDone) -> Done:
        """As if there were one."""
        pages = self.state.passes[op.rid].pages
        told = super().on_forward_done(op)
        pool = self.state.pools[KV_DEVICE]
        for page in pages:
            pool.draft[page] = pool.stamp[page]
        return told


@plant("draft-outlives-page", "K14", OWN, expected="HC-DRAFT-07")
class DraftOutlivesPage(Model):
    """The draft page of a page that was freed stays valid, and its next holder guesses from another prompt."""

    def release(self, pool_name: PoolName, pages: Pages) -> None:
        """It is not looked at."""
        pool = self.state.pools[pool_name]
        drafts = {page: pool.draft[page] for page in pages}
        super().release(pool_name, pages)
        for page, draft in drafts.items():
            pool.draft[page] = draft if pool.owner[page] == FREE else pool.draft[page]


@plant_in_storage("draft-taken-for-read", "K12", "SG-31108", expected="HC-DRAFT-04")
class DraftTakenForRead(Model):
    """A draft page that storage did not have is valid.

    SGLang: presence is asked for all pools at once, and a side pool that comes back shorter is only logged.
    """

    def on_read_done(self, op: ReadDone) -> Done:
        """As many as there are pages."""
        taken = self.state.draft and self.storage.settings.draft
        return super().on_read_done(op.model_copy(update={"draft": op.pages}) if taken else op)


@plant_in_storage("draft-of-next-page", "K14", OWN, expected=("HC-DRAFT-01", "HC-DRAFT-04"))
class DraftOfNextPage(Model):
    """The draft pages of a batch are read into each other's places."""

    def on_read_done(self, op: ReadDone) -> Done:
        """Each goes one further, the last to the first."""
        record = self.storage.records[op.id]
        assert isinstance(record, PrefetchReading)
        told = super().on_read_done(op)
        pages = record.pages[record.done : record.done + op.draft]
        pool = self.state.pools[KV_HOST]
        drafts = [pool.draft[page] for page in pages]
        for page, draft in zip(pages, drafts[-1:] + drafts[:-1], strict=True):
            pool.draft[page] = draft
        return told


@plant_in_storage("missing-draft-costs-page", "K11", OWN, expected="HC-DRAFT-05")
class MissingDraftCostsPage(Model):
    """A page that comes without its draft page does not count as read, and is computed again."""

    def on_read_done(self, op: ReadDone) -> Done:
        """As many pages as draft pages."""
        taken = self.state.draft and self.storage.settings.draft
        return super().on_read_done(op.model_copy(update={"pages": op.draft}) if taken else op)


@plant_in_storage("draft-believed-with-page", "K12", OWN, expected="HC-DRAFT-09")
class DraftBelievedWithPage(Model):
    """Where a page was put its draft page is believed stored too, and is never put."""

    def on_write_done(self, op: WriteDone) -> Done:
        """As many as there are pages."""
        taken = self.state.draft and self.storage.settings.draft
        return super().on_write_done(op.model_copy(update={"draft": op.pages}) if taken else op)


@plant("late-draft-taken-for-valid", "K12", OWN, expected=("HC-DRAFT-11", "HC-DRAFT-07"))
class LateDraftTakenForValid(Model):
    """When a draft model is registered, each page that is written counts as having its draft page.

    SGLang: its draft pool is read and stored from then on, also for pages that were computed before.
    """

    def on_register_draft(self, op: RegisterDraft) -> Done | Refused:
        """By what their pages hold."""
        told = super().on_register_draft(op)
        if isinstance(told, Done):
            for pool in self.state.pools.values():
                pool.draft = [pool.stamp[page] for page in range(len(pool.stamp))]
        return told


@plant("reset-forgets-draft", "K11", OWN, expected="HC-LIFE-02")
class ResetForgetsDraft(Model):
    """After a reset the draft model that was registered is gone, and nobody registers it again."""

    def on_reset(self, op: Reset) -> Done | Refused:
        """As in a cache that was just made."""
        told = super().on_reset(op)
        if isinstance(told, Done):
            self.state.draft = self.profile.draft
        return told
