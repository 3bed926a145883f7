"""Models small enough that every byte of every page can be compared after every step."""

from typing import Annotated, Literal

from pydantic import Field

from hicache_ref.engine.contents import Pairs
from hicache_ref.engine.device import Device
from hicache_ref.engine.layout import HostLayout, PoolSpec, mha, mla, state
from hicache_ref.engine.pools import PoolPair, pool_pair
from hicache_ref.engine.transfers import IoBackend, io_for, normalised
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.ids import KV, STATE, Component
from hicache_ref.vocabulary.profile import Profile


class SmallModel(Frozen):
    """The attention of a model, and how its host pages lie; its draft model is deeper than it is."""

    kind: Literal["mha", "mla"] = "mha"
    layout: HostLayout = "page_first"
    io: IoBackend | None = None
    """What copies that layout; None: the first that does. Of some pairs SGLang makes others (`normalised`)."""

    layers: Annotated[int, Field(ge=1)] = 3
    draft_layers: Annotated[int, Field(ge=1)] = 4
    state_layers: tuple[int, ...] = (0, 2)

    def pairs(self, profile: Profile, device: Device) -> Pairs:
        """Its pools, with those of a draft model or of states where the profile has such.

        Raises LayoutError where the layout or io backend is not for this kind of attention.
        """
        pairs: dict[Component, list[PoolPair]] = {KV: [self._kv("kv", self.layers, profile, device)]}
        if profile.draft:
            pairs[KV].append(self.draft_pair(profile, device))
        if profile.state:
            spec = state(self.state_layers, {"temporal": 3, "conv": 2})
            slots = (profile.sizes.device_states, profile.sizes.host_states)
            pairs[STATE] = [pool_pair("state", spec, device, slots, "page_first_direct", "direct")]
        return pairs

    def draft_pair(self, profile: Profile, device: Device) -> PoolPair:
        """The pools of its draft model. Raises LayoutError."""
        return self._kv("draft", self.draft_layers, profile, device)

    def _kv(self, name: str, layers: int, profile: Profile, device: Device) -> PoolPair:
        sizes = profile.sizes
        spec = self._spec(layers, sizes.page_size)
        io, layout = normalised(self.io or io_for(self.layout), self.layout)
        return pool_pair(name, spec, device, (sizes.device_pages, sizes.host_pages), layout, io)

    def _spec(self, layers: int, page_size: int) -> PoolSpec:
        return mha(layers, 2, 2, 1, page_size) if self.kind == "mha" else mla(layers, 3, 1, 1, page_size)
