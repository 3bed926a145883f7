"""Storage settings: what an operator configures for the third tier, typed and strict.

They come as JSON text, or as `@file` in JSON, TOML or YAML (upstream: hicache_storage_backend_extra_config).
"""

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from hicache_ref.vocabulary.base import Frozen

PrefetchPolicy = Literal["best_effort", "wait_complete", "timeout"]
PREFETCH_POLICIES: tuple[PrefetchPolicy, ...] = ("best_effort", "wait_complete", "timeout")

AttachFailure = Literal["settings", "store", "pools"]
ATTACH_FAILURES: tuple[AttachFailure, ...] = ("settings", "store", "pools")
"""Where an attach fails: its settings cannot be read, the store not opened, the host pools not registered with it."""


def _number(value: object) -> object:
    """Refuses what Python would silently take for a number: truth values, NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    if not math.isfinite(value):
        raise ValueError(f"{value!r} is not finite")
    return value


def _truth(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


Count = Annotated[int, BeforeValidator(_number), Field(ge=0)]
Seconds = Annotated[float, BeforeValidator(_number), Field(ge=0)]
Truth = Annotated[bool, BeforeValidator(_truth)]


TimeoutShape = Literal["capped", "linear", "constant"]
"""Whether the time that a request waits grows with the tokens, and whether a maximum counts."""


class StorageSettings(Frozen):
    """What the storage tier follows at run time."""

    prefetch_policy: PrefetchPolicy = "timeout"
    prefetch_threshold: Count = 256
    """Tokens below which nothing is prefetched; never less than a page."""

    prefetch_timeout_base: Seconds = 2.0
    prefetch_timeout_per_ki_token: Seconds = 0.1
    prefetch_timeout_max: Seconds | None = None
    """Seconds after which a request waits no more: base + per_ki_token * tokens / 1024, at most max if given."""

    pass_prefix_keys: Truth = False
    """Whether each batch is told the hashes before it (upstream: hicache_storage_pass_prefix_keys)."""

    draft: Truth = True
    """Whether the backend takes draft pages; off for backends without them and with split heads."""

    extra: dict[str, JsonValue] = {}
    """Keys that are the backend's own."""

    @model_validator(mode="after")
    def _base_within_max(self) -> "StorageSettings":
        if self.prefetch_timeout_max is not None and self.prefetch_timeout_base > self.prefetch_timeout_max:
            raise ValueError("prefetch_timeout_base is more than prefetch_timeout_max")
        return self

    def timeout_ms(self, tokens: int, shape: TimeoutShape) -> int:
        """How long a request waits for a prefetch of `tokens` tokens, in milliseconds."""
        seconds = self.prefetch_timeout_base
        if shape != "constant":
            seconds += self.prefetch_timeout_per_ki_token * tokens / 1024
        if shape == "capped" and self.prefetch_timeout_max is not None:
            seconds = min(seconds, self.prefetch_timeout_max)
        return round(1000 * seconds)
