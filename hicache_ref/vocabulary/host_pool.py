"""How large a host pool is: by a ratio to the device pool, by bytes, or by pages (HC-CONF-06)."""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from hicache_ref.vocabulary.base import Frozen


class HostPool(Frozen):
    """How large the host pool is to be: exactly one of the three says it (semantics 8.6)."""

    ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Host tokens for each device token (upstream: hicache_ratio)."""

    size_bytes: Annotated[int, Field(gt=0)] | None = None
    """Bytes of host memory (upstream: hicache_size, there in GB)."""

    pages: Annotated[int, Field(gt=0)] | None = None
    rounding: Literal["down", "up_one"] = "down"
    """Whole pages only, or those and one more (upstream adds one)."""

    reserve_bytes: Annotated[int, Field(ge=0)] = 0
    """Memory that must stay available to others (upstream: 10 GiB)."""

    @model_validator(mode="after")
    def _one_way(self) -> "HostPool":
        if sum(given is not None for given in (self.ratio, self.size_bytes, self.pages)) != 1:
            raise ValueError("give exactly one of ratio, size_bytes, pages")
        return self

    def count(self, device_pages: int, page_size: int, bytes_per_token: int, available_bytes: int | None = None) -> int:
        """The number of host pages, at least 1 (HC-CONF-06).

        `page_size` is in tokens, `bytes_per_token` and `available_bytes` in bytes. Raises ValueError where the
        pool would have no page or would leave less than `reserve_bytes` of `available_bytes`.
        """
        pages = self.pages if self.pages is not None else self._from_tokens(device_pages, page_size, bytes_per_token)
        if pages < 1:
            raise ValueError(f"host pool would have {pages} pages, expected at least 1")
        need = pages * page_size * bytes_per_token
        if available_bytes is not None and need > available_bytes - self.reserve_bytes:
            raise ValueError(f"host pool needs {need} bytes, only {available_bytes - self.reserve_bytes} may be used")
        return pages

    def _from_tokens(self, device_pages: int, page_size: int, bytes_per_token: int) -> int:
        if self.ratio is not None:
            tokens = math.floor(device_pages * page_size * self.ratio)
        else:
            assert self.size_bytes is not None
            tokens = self.size_bytes // bytes_per_token
        return tokens // page_size + (1 if self.rounding == "up_one" else 0)
