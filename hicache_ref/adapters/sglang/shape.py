"""What a live cache is: its release, rules, sizes and settings, read off its own objects."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from hicache_ref.adapters.sglang_hiradix.engine import Clock, Engine
from hicache_ref.adapters.sglang_hiradix.following import NAME
from hicache_ref.adapters.sglang_hiradix.traits import Traits
from hicache_ref.adapters.sglang_teller.nodes import Shape
from hicache_ref.requirements import catalogue_digest
from hicache_ref.trace import Implementation, TraceHeader
from hicache_ref.vocabulary.adapter import AdapterError
from hicache_ref.vocabulary.profile import RULES, Profile, Sizes
from hicache_ref.vocabulary.storage import StorageSettings

_DEFAULT_BATCH = 128
_NO_MAXIMUM_SECONDS = 1e9


class RecordError(Exception):
    """This cache cannot be recorded; the text says why, and what was expected."""


def tree_of(cache: Any) -> Engine:
    """The cache with ways to read it. Raises RecordError if it is used already, or of a kind that has no words here."""
    try:
        traits = Traits.read()
    except AdapterError as error:
        raise RecordError(str(error)) from None
    if not isinstance(cache, traits.cache):
        raise RecordError(f"a {type(cache).__name__}, expected a HiRadixCache")
    for name, what in (("disable", "disabled"), ("is_eagle", "one of token pairs")):
        if getattr(cache, name, False):
            raise RecordError(f"the cache is {what}, expected another: that is not recorded")
    if cache.root_node.children or cache.ongoing_write_through or cache.ongoing_prefetch:
        raise RecordError("the cache is used already, expected a new or a flushed one")
    engine = Engine(traits, _profile(cache, traits), "", Clock(), events=False)
    engine.cache, engine.controller = cache, cache.cache_controller
    engine.host, engine.allocator = cache.token_to_kv_pool_host, cache.token_to_kv_pool_allocator
    return engine


def header_of(engine: Engine) -> TraceHeader:
    """The first line of its trace."""
    implementation = Implementation(name=NAME, version=_version(engine.traits))
    return TraceHeader(
        requirements=catalogue_digest(), profile=engine.profile, implementation=implementation, level="tree"
    )


def shape_of(engine: Engine) -> Shape:
    """What the process that writes its trace has to know of it."""
    sizes, slots, traits = engine.profile.sizes, engine.device_slots, engine.traits
    return Shape(
        engine.page_size, sizes.device_pages, slots.offset, sizes.storage_batch, traits.allocates_before,
        traits.acknowledges_batches,
    )  # fmt: skip


def _version(traits: Traits) -> str:
    try:
        return version("sglang")
    except PackageNotFoundError:
        return traits.described()


def _profile(cache: Any, traits: Traits) -> Profile:
    size, controller, rules = cache.page_size, cache.cache_controller, RULES[traits.preset]
    changed: dict[str, object] = {
        "write_policy": controller.write_policy,
        "eviction": _eviction(cache, traits),
        "write_through_threshold": cache.write_through_threshold,
    }
    threshold = getattr(getattr(cache, "eviction_strategy", None), "protected_threshold", None)
    if threshold is not None:
        changed["slru_protected_threshold"] = threshold
    sizes = Sizes(
        device_pages=cache.token_to_kv_pool_allocator.size // size,
        host_pages=cache.token_to_kv_pool_host.size // size,
        page_size=size,
        load_back_threshold=cache.load_back_threshold,
        storage_batch=_batch(controller, traits),
    )
    return Profile(rules=rules.model_copy(update=changed), sizes=sizes, name=f"{traits.preset}/recorded")


def _eviction(cache: Any, traits: Traits) -> str:
    """The policy by the name of its strategy's class; releases without strategies have lru."""
    strategy = type(getattr(cache, "eviction_strategy", None)).__name__
    return strategy.removesuffix("Strategy").lower() if strategy.endswith("Strategy") else "lru"


def _batch(controller: Any, traits: Traits) -> int:
    """Pages in one batch of storage."""
    set_here: int | None = getattr(controller, "storage_batch_size", None)
    return set_here or int(getattr(traits.controller, "STORAGE_BATCH_SIZE", _DEFAULT_BATCH))


def settings_of(engine: Engine) -> StorageSettings:
    """How storage is used, now."""
    cache = engine.cache
    settings: dict[str, object] = {
        "prefetch_policy": cache.prefetch_stop_policy,
        "prefetch_threshold": cache.prefetch_threshold,
        "pass_prefix_keys": bool(getattr(cache, "hicache_storage_pass_prefix_keys", False)),
    }
    config = getattr(cache, "prefetch_timeout_config", None)
    if config is not None:
        settings |= {"prefetch_timeout_base": config.base, "prefetch_timeout_per_ki_token": config.per_ki_token}
        if config.max < _NO_MAXIMUM_SECONDS:
            settings["prefetch_timeout_max"] = config.max
    elif hasattr(cache, "prefetch_timeout_per_page"):
        per_ki_token = cache.prefetch_timeout_per_page * 1024 / cache.page_size
        settings |= {
            "prefetch_timeout_base": cache.prefetch_timeout_base, "prefetch_timeout_per_ki_token": per_ki_token
        }  # fmt: skip
    else:
        settings |= {"prefetch_timeout_base": cache.prefetch_timeout, "prefetch_timeout_per_ki_token": 0.0}
    return StorageSettings.model_validate(settings)
