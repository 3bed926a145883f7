"""The threads of storage of a hybrid cache: states go to storage before their pages, and come from it behind them."""

from hicache_ref.adapters.sglang_himamba.fitting import GET_STATES, get_states, put_states
from hicache_ref.adapters.sglang_hiradix.books import Backup
from hicache_ref.adapters.sglang_hiradix.stepper import Answer, StepThread
from hicache_ref.adapters.sglang_hiradix.workers import Workers
from hicache_ref.vocabulary.outcomes import Invalid


class HybridWorkers(Workers):
    """The threads of one controller."""

    def _read_batch(self, thread: StepThread, answer: Answer) -> None:
        """Also the state, for which the thread asks behind the last page, or has asked before the first."""
        operation = thread.holding
        self._one_batch(thread, answer)
        if thread.is_alive() and thread.holding is not operation and answer.states:
            operation.pool_storage_result.update_extra_pool_hit_pages(
                get_states(self.engine.controller.storage_backend)
            )
        if thread.is_alive() and thread.at.kind == "call" and thread.at.name == GET_STATES:
            self._one_batch(thread, Answer(answer.states))

    def write(self, backup: Backup, answer: Answer) -> Invalid | None:
        """Also states, which upstream puts first: here as late as anybody can tell, behind the last page."""
        no = super().write(backup, answer)
        if no is None and answer.states:
            put_states(self.engine.controller.storage_backend)
        return no
