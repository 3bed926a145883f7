"""How the engine keeps and moves bytes, and how it names them in a store."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from hicache_ref.engine.workers import DRAFT_POOL, KV_POOL, Naming, WorkerSettings
from hicache_ref.storage.config import StorageConfig, object_keys
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.ids import PageHash
from hicache_ref.vocabulary.profile import Profile


class EngineSettings(Frozen):
    """How the cache's bytes are kept and moved. Sizes are in bytes a page, times in seconds, chances from 0 to 1."""

    page_bytes: Annotated[int, Field(ge=1)] = 4096
    draft_bytes: Annotated[int, Field(ge=1)] = 1024
    workers: WorkerSettings = WorkerSettings()
    stop_timeout_s: Annotated[float, Field(ge=0)] = 5.0
    """How long the end of the cache, or of the interpreter, waits for the store."""

    verify: bool = True
    """Whether pages are compared with their patterns wherever they are read."""

    strict: bool = True
    """Whether a wrong page raises WrongBytes; if not, it is counted."""

    seed: int | None = None
    """By which lot passes and copies are put off; None: they are not."""

    copy_failures: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How many of the copies fail, if there is a seed."""


def naming(profile: Profile, settings: EngineSettings) -> Naming:
    """The names of the objects that pages are in, one object a page; pages of another size are others.

    It knows nothing of the cache, so that workers do not keep that alive.
    """
    config = StorageConfig(
        model_name="reference", page_size=profile.sizes.page_size, dtype="bytes",
        tag=f"{settings.page_bytes}+{settings.draft_bytes}",
    )  # fmt: skip
    # A name begins with the hash, and the rest is the same for all pages of a pool.
    suffixes = {pool: object_keys(config, "", pool)[0] for pool in (KV_POOL, DRAFT_POOL)}

    def names(hashes: Sequence[PageHash], pool: str) -> list[str]:
        suffix = suffixes[pool]
        return [digest + suffix for digest in hashes]

    return names
