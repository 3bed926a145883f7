"""What a store measures of its work: each batch once, and at no cost to what is stored."""

from hicache_ref.storage.base import Malformed, Unsupported
from hicache_ref.storage.conformance.kit import PAGE, Broken, Kit, NotJudged, Watched
from hicache_ref.storage.conformance.rules import rule
from hicache_ref.storage.measured import Measured

_COUNT = 5


@rule("HC-STORE-41")
def each_batch_is_measured_once(kit: Kit) -> int:
    """A store that measures tells each batch once, with its pages and its speed."""
    handle = kit.open(kit.config.model_copy(update={"metrics": True}))
    if _told(handle) != Measured():
        raise Broken("batches are told before one was moved")
    keys = kit.keys("k", _COUNT)
    pages = [kit.page(key) for key in keys]
    kit.stored(handle, keys, pages)
    kit.get(handle, [*keys, kit.key("absent")], [PAGE] * (_COUNT + 1))
    told = _told(handle)
    # Whether a page that was asked for and is absent counts is the store's affair.
    _expect_pages("stored", told.backup_pgs, told.backup_bandwidth, (_COUNT,))
    _expect_pages("read", told.prefetch_pgs, told.prefetch_bandwidth, (_COUNT, _COUNT + 1))
    if _told(handle) != Measured():
        raise Broken("batches that were told are told again")
    if told == Measured():
        raise NotJudged("the store measures other calls than these")
    return len(told.backup_pgs) + len(told.prefetch_pgs)


def _told(handle: Watched) -> Measured:
    try:
        return handle.measured()
    except Unsupported:
        raise NotJudged("the store measures nothing") from None
    except Malformed as error:
        raise Broken(str(error)) from None


def _expect_pages(what: str, pages: tuple[int, ...], speeds: tuple[float, ...], expected: tuple[int, ...]) -> None:
    if len(pages) != len(speeds):
        raise Broken(f"{len(pages)} batches {what} are told with {len(speeds)} speeds, expected one for each")
    if pages and sum(pages) not in expected:
        raise Broken(f"batches {what} are told as {sum(pages)} pages, expected {' or '.join(map(str, expected))}")


@rule("HC-STORE-42")
def measuring_names_nothing(kit: Kit) -> int:
    """Whether a store measures, and under which labels that is published, changes no object."""
    silent = kit.config.model_copy(update={"metrics": False, "metric_labels": {}})
    telling = kit.config.model_copy(update={"metrics": True, "metric_labels": {"cluster": "a"}})
    judged = 0
    for writer, reader in ((silent, telling), (telling, silent)):
        name = f"measured {writer.metrics}"
        kit.stored(kit.under(writer), [kit.key(name, writer)], [kit.page(name)])
        judged += kit.expect(kit.under(reader), [kit.key(name, reader)], [kit.page(name)], "HC-STORE-42")
    return judged
