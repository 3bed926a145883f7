"""The process that holds the caches: `python -m hicache_ref.adapters.sglang_himamba.child SETUP` answers lines."""

import sys
from typing import Any

from hicache_ref.adapters.sglang_himamba.caller import HybridCaller
from hicache_ref.adapters.sglang_himamba.engine import HybridEngine
from hicache_ref.adapters.sglang_himamba.fitting import fit
from hicache_ref.adapters.sglang_himamba.following import describe, expect_followable
from hicache_ref.adapters.sglang_himamba.traits import HYBRID_REAL, HybridTraits
from hicache_ref.adapters.sglang_hiradix.child import SglangHiRadix, main
from hicache_ref.vocabulary.adapter import Description
from hicache_ref.vocabulary.profile import Profile


class SglangHiMamba(SglangHiRadix):
    """An Adapter over the hybrid caches of one source tree; every reset makes a new one."""

    traits_kind = HybridTraits
    engine_kind = HybridEngine
    caller_kind = HybridCaller
    real = HYBRID_REAL

    def fit(self, traits: Any) -> None:
        """The modules are changed as far as they have to be."""
        fit(traits, self._clock, self._put_missing, self._put_missing_state)

    def _put_missing_state(self, backend: Any, digest: str) -> None:
        """Storage has the state, as if somebody else had put it there."""
        backend.set(f"{digest}.{self.traits().storage.PoolName.MAMBA}", self._stamps.flat_state(digest))

    def described(self, traits: Any, version: str) -> Description:
        """What these caches are and have."""
        setup = self.setup
        return describe(traits, version, storage=setup.storage, events=self._publishes(), pinned=setup.is_pinned)

    def expect_followable(self, profile: Profile) -> None:
        """The profile asks for nothing but what these caches do. Raises AdapterError."""
        expect_followable(profile, self.traits())


if __name__ == "__main__":
    main(sys.argv[1:], SglangHiMamba)
