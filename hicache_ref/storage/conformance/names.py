"""Names: different keys are different objects, and what makes bytes different makes names different."""

from collections.abc import Iterator

from hicache_ref.storage.config import StorageConfig
from hicache_ref.storage.conformance.kit import PAGE, Broken, Kit
from hicache_ref.storage.conformance.rules import rule


@rule("HC-STORE-30")
def other_keys_are_other_objects(kit: Kit) -> int:
    """Different keys are different objects, whatever they are made of; a key that cannot be is refused, and absent."""
    handle = kit.main
    base = kit.hash("k")
    keys = [base, *([] if kit.names_by_config else _odd(base)), *_like_hashes(base)]
    pages = [kit.page(f"odd {number}") for number in range(len(keys))]
    # 64 hex digits are an ordinary key.
    kit.stored(handle, keys[:1], pages[:1])
    # One a call: what happens to the others of a batch is another rule's.
    answers = [kit.put(handle, [key], [page])[0] for key, page in zip(keys, pages, strict=True)]
    return kit.whole_or_refused(handle, keys, pages, answers, "HC-STORE-30")


def _like_hashes(base: str) -> Iterator[str]:
    """Keys as SGLang makes them, some of them beginnings of others."""
    yield from (f"{base}.draft", f"{base}.mamba", f"{base}_0_2", f"{base}_0_20", base[:32], base.upper())


def _odd(base: str) -> Iterator[str]:
    """Keys that mean something else to a file system, a query language or a shell, or are hard to write down."""
    yield from (f"{base}/a", f"{base}_a", f"{base}-a", f"{base}%2Fa", f"{base}%252Fa", f"{base}\\a", f"{base}//a")
    yield from (f"../{base}", f"..%2F{base}", f"./{base}", f".{base}", f"{base}.", f"{base}.bin", f"/{base}")
    yield from (f"{base} a", f"{base}  a", f" {base}", f"{base}\n", f"{base}\t", f"{base}*", f"{base}?", f"{base}[a]")
    yield from (f"{base}ä", f"{base}a\u0308", f"{base}😀", f"{base}:a", f"{base}~a", f"{base}'\"`$(a)", f"{base}\x7f")
    yield from (base * 3 + "a", base * 3 + "b", base * 40 + "a", base * 40 + "b", "b" + base * 40)


@rule("HC-STORE-37")
def other_bytes_other_objects(kit: Kit) -> int:
    """Configurations whose bytes are not interchangeable share no object."""
    first = kit.config
    kit.stored(kit.under(first), [kit.key("k", first)], [kit.page("k")])
    judged = 0
    for what, other in _others(first):
        if kit.get(kit.under(other), [kit.key("k", other)], [PAGE])[0] is not None:
            raise Broken(f"a page that was stored by another {what} is found, expected a miss")
        judged += 1
    return judged


def _others(config: StorageConfig) -> Iterator[tuple[str, StorageConfig]]:
    """Configurations that differ from `config` in one thing that makes other bytes."""
    changes: dict[str, dict[str, object]] = {
        "model": {"model_name": f"{config.model_name}-other"},
        "data type": {"dtype": "float16" if config.dtype == "bfloat16" else "bfloat16"},
        "layout": {"layout": "page_first" if config.layout == "layer_first" else "layer_first", "split_heads": False},
        "tensor parallel rank": {"tp_rank": (config.tp_rank + 1) % 2, "tp_size": 2, "replicated": False},
        "pipeline stage": {"pp_rank": (config.pp_rank + 1) % 2, "pp_size": 2},
        "context parallel rank": {"cp_rank": (config.cp_rank + 1) % 2, "cp_size": 2},
    }
    for what, change in changes.items():
        yield what, config.model_copy(update=change)


@rule("HC-STORE-38")
def equal_bytes_one_object(kit: Kit) -> int:
    """Ranks that hold the same bytes share objects: what one stored, the others read."""
    shared = {"replicated": True, "split_heads": False, "tp_size": 4}
    ranks = [kit.config.model_copy(update=shared | {"tp_rank": rank}) for rank in (0, 1, 3)]
    # Attention replicas hold the same bytes, replicated or not.
    replicas = [kit.config.model_copy(update={"dp_rank": rank}) for rank in (0, 1)]
    judged = 0
    for name, (writer, *readers) in (("rank", ranks), ("replica", replicas)):
        kit.stored(kit.under(writer), [kit.key(name, writer)], [kit.page(name)])
        for reader in readers:
            judged += kit.expect(kit.under(reader), [kit.key(name, reader)], [kit.page(name)], "HC-STORE-38")
    return judged
