"""What SGLang does with a store by its name, against tables written down from its cache controllers."""

import pytest

from hicache_ref.storage.base import Misuse
from hicache_ref.storage.upstream import NO_DRAFT, ZERO_COPY, batch_pages, call_level, takes_draft

LEVELS = """
name          0.5.1.post3  0.5.2    0.5.6      0.5.9      0.5.15     0.5.20     0.5.23
file          generic      generic  generic    generic    generic    generic    generic
hf3fs         generic      generic  zero_copy  zero_copy  zero_copy  zero_copy  zero_copy
mooncake      generic      generic  zero_copy  zero_copy  zero_copy  zero_copy  zero_copy
eic           generic      generic  zero_copy  zero_copy  zero_copy  zero_copy  zero_copy
nixl          generic      generic  generic    zero_copy  zero_copy  zero_copy  zero_copy
simm          generic      generic  generic    generic    zero_copy  zero_copy  zero_copy
mori          generic      generic  generic    generic    zero_copy  zero_copy  zero_copy
npu_memcache  generic      generic  generic    generic    generic    zero_copy  zero_copy
tensorcast    generic      generic  generic    generic    generic    generic    zero_copy
seaweedfs     generic      generic  generic    generic    generic    generic    zero_copy
aibrix        generic      generic  generic    generic    generic    generic    generic
sim           generic      generic  generic    generic    generic    generic    generic
shm           generic      generic  generic    generic    generic    generic    generic
dynamic       generic      generic  generic    generic    generic    generic    generic
"""
PAGES = """
name          0.5.1  0.5.1.post3  0.5.2  0.5.15  0.5.23
file          8      8            128    128     128
nixl          8      8            128    128     128
mooncake      128    128          128    128     128
hf3fs         128    128          128    128     128
anything      8      8            128    128     128
"""
DRAFT = """
name          0.5.9  0.5.15  0.5.16  0.5.16+split
file          no     yes     yes     yes
aibrix        no     yes     yes     yes
mori          no     yes     yes     yes
dynamic       no     yes     yes     yes
mooncake      no     yes     yes     no
hf3fs         no     no      no      no
eic           no     no      no      no
nixl          no     no      no      no
simm          no     no      no      no
"""


def rows(table: str) -> list[tuple[str, str, str]]:
    """Each cell as (store, release, what stands there)."""
    head, *lines = [line.split() for line in table.strip().splitlines()]
    return [(line[0], release, cell) for line in lines for release, cell in zip(head[1:], line[1:], strict=True)]


@pytest.mark.parametrize(("name", "version", "level"), rows(LEVELS))
def test_the_level_of_each_store(name: str, version: str, level: str) -> None:
    """Goal: a store gets the calls that SGLang makes. Method: the table above, cell by cell."""
    assert level == call_level(name, version=version)


def test_a_dynamic_store_chooses_its_level() -> None:
    """Goal: `interface_v1` counts where there is one. Method: four values, another store, a release before it."""
    assert ["zero_copy", "zero_copy", "generic", "generic"] == [
        call_level("dynamic", {"interface_v1": value}) for value in (1, True, 0, False)
    ]
    assert "generic" == call_level("files", {"interface_v1": 1})
    assert "generic" == call_level("dynamic", {"interface_v1": 1}, "0.5.2")


@pytest.mark.parametrize(("name", "version", "pages"), rows(PAGES))
def test_the_pages_of_a_call(name: str, version: str, pages: str) -> None:
    """Goal: a batch is as large as SGLang makes it. Method: the table above, cell by cell."""
    assert int(pages) == batch_pages(name, version)


@pytest.mark.parametrize(("name", "version", "takes"), rows(DRAFT))
def test_the_stores_that_take_draft_pages(name: str, version: str, takes: str) -> None:
    """Goal: no draft page goes where nobody reads it. Method: the table above, cell by cell."""
    assert (takes == "yes") == takes_draft(name, version.removesuffix("+split"), split_heads=version.endswith("+split"))


def test_the_tables_have_no_other_stores() -> None:
    """Goal: no row is forgotten here. Method: the stores that the code names, against those above."""
    assert set().union(*ZERO_COPY.values()) <= {name for name, _, _ in rows(LEVELS)}
    assert set().union(*filter(None, NO_DRAFT.values())) <= {name for name, _, _ in rows(DRAFT)}


@pytest.mark.parametrize("version", ["0.4.9", "0.5", "latest", ""])
def test_a_version_that_is_none(version: str) -> None:
    """Goal: a typo is told. Method: a release from before the tables, and texts that are none."""
    for ask in (call_level, batch_pages, takes_draft):
        with pytest.raises(Misuse, match=r"version .*, expected "):
            ask("file", version=version)  # type: ignore[operator]
