"""Stores by name: URLs, and objects of other packages."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hicache_ref.storage.base import Backend, Misuse, StorageClosed, StorageError, Unsupported
from hicache_ref.storage.config import LAYOUTS, Layout, StorageConfig
from hicache_ref.storage.files import FilesBackend
from hicache_ref.storage.foreign import ForeignBackend, SglangExtraInfo, sglang_config
from hicache_ref.storage.memory import MemoryBackend
from hicache_ref.storage.registry import (
    KINDS,
    StorageUrl,
    guest_url,
    open_backend,
    open_dynamic,
    parse_url,
)
from tests.storage.offered import NamesByConfiguration
from tests.storage.pages import get, put, view
from tests.storage.servers import need

CONFIG = StorageConfig(model_name="m", page_size=16)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("files:///var/pages", StorageUrl(scheme="files", path="/var/pages")),
        ("files://pages/a%20b?fsync=1", StorageUrl(scheme="files", host="pages", path="/a b", options={"fsync": "1"})),
        ("memory://", StorageUrl(scheme="memory")),
        ("redis://h:1/2", StorageUrl(scheme="redis", host="h", port=1, path="/2")),
        ("mooncake://h", StorageUrl(scheme="mooncake", host="h")),
        ("a.b:C.d?x=&y=2", StorageUrl(scheme="object", path="a.b:C.d", options={"x": "", "y": "2"})),
    ],
)
def test_urls_have_parts(text: str, url: StorageUrl) -> None:
    """Goal: what is meant is read. Method: each form."""
    assert url == parse_url(text)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            "pages",
            "'pages' names no store, expected one of files:///FOLDER, memory://NAME, mooncake://HOST:PORT, redis",
        ),
        ("files:pages", "names no store"),
        ("s3://bucket", "unknown kind of store 's3', expected one of files"),
        ("redis://h:port/0", "expected one of"),
        ("redis://h/one", "database 'one', expected a number: redis://HOST:PORT/DB"),
        ("files:///", "no folder in the URL, expected files:///FOLDER"),
        ("files:///x?a=1&a=2", "an option comes twice, expected each once"),
        ("files:///x?colour=red", "unknown option 'colour', expected one of: fsync, checksum, format"),
        ("files:///x?checksum=crc", "checksum = 'crc': Input should be 'xxh3' or 'blake2b'"),
        ("memory://x?a=1", "unknown option 'a', expected one of: none"),
        ("no_such_module:C", "no_such_module:C: ModuleNotFoundError"),
        ("json:loads", "json:loads: TypeError"),
        ("collections:Counter", "Counter has no exists, expected the methods of HiCacheStorage"),
    ],
)
def test_a_mistake_is_one_line(text: str, what: str) -> None:
    """Goal: what is wrong and what was expected, in a line. Method: one mistake each."""
    with pytest.raises(Misuse) as caught:
        open_backend(text, CONFIG)

    assert what in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())


def test_urls_open_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a URL is a store. Method: two handles of each local kind share pages, also in a relative folder."""
    monkeypatch.chdir(tmp_path)
    for text, kind in {"files://a/b?fsync=true": FilesBackend, "memory://shared": MemoryBackend}.items():
        one, two = open_backend(text, CONFIG), open_backend(text, CONFIG)
        assert isinstance(one, kind)
        assert [True] == put(one, {"k": b"page"})
        assert [b"page"] == get(two, ["k"], 4)

    assert (tmp_path / "a" / "b" / "k.bin").is_file()


def test_who_comes_and_goes_takes_nothing_along() -> None:
    """Goal: a passing client of Mooncake holds no pages. Method: the URLs that guests get."""
    assert "mooncake://h:1?staging_mib=8&segment_mib=0" == guest_url("mooncake://h:1?staging_mib=8&segment_mib=512")
    assert ["files:///x?fsync=1", "a:B"] == [guest_url(text) for text in ("files:///x?fsync=1", "a:B")]
    assert {"mooncake"} == {name for name, kind in KINDS.items() if kind.guest}


def test_objects_of_other_packages() -> None:
    """Goal: a class is opened with what it needs. Method: one in our terms, one in SGLang's, one by its settings."""
    ours: Backend = open_backend("tests.storage.offered:InOurTerms", CONFIG)
    theirs = open_backend("tests.storage.offered:NamesByConfiguration", CONFIG)
    settings = {"backend_name": "x", "module_path": "tests.storage.offered", "class_name": "NamesByConfiguration"}
    dynamic = open_dynamic(settings, CONFIG)

    assert isinstance(ours, MemoryBackend)
    assert isinstance(theirs, ForeignBackend)
    assert [True, True] == put(theirs, {"a": b"page", "b": b"more"})
    assert [b"page", b"more", None] == get(dynamic, ["a", "b", "c"], 4)
    assert (2, 0) == (dynamic.exists(["a", "b", "c"]), dynamic.exists([]))


@pytest.mark.parametrize("name", ["backend_name", "module_path", "class_name"])
@pytest.mark.parametrize("value", [None, 7, ""])
def test_a_dynamic_backend_says_who_it_is(name: str, value: object) -> None:
    """Goal: half a name opens nothing. Method: each of the three settings missing, no text, or empty."""
    settings = {"backend_name": "x", "module_path": "tests.storage.offered", "class_name": "NamesByConfiguration"}
    wrong: dict[str, Any] = {key: each for key, each in settings.items() if key != name or value is not None}
    wrong |= {} if value is None else {name: value}

    with pytest.raises(Misuse, match=f"{name} is {value!r}, expected a text: the dynamic backend needs it"):
        open_dynamic(wrong, CONFIG)


def test_a_configuration_that_is_optional_is_given_too() -> None:
    """Goal: a class that can be made alone still names its pages right. Method: optional by name, by type, by star."""
    for name in ("ConfigurationIsOptional", "ConfigurationByType", "WhateverItIsGiven"):
        one = open_backend(f"tests.storage.offered:{name}", CONFIG)
        other = open_backend(f"tests.storage.offered:{name}", CONFIG.model_copy(update={"dtype": "float16"}))
        assert [True] == put(one, {name: b"page"})
        assert (1, 0) == (one.exists([name]), other.exists([name])), name
    # What is optional and no configuration keeps its default.
    assert "default" == open_backend("tests.storage.offered:NamedShelf", CONFIG).name  # type: ignore[attr-defined]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_layout_is_page_first(layout: Layout) -> None:
    """Goal: a store cuts pages as SGLang tells it. Method: every layout; the flag is true for page_first alone."""
    config = CONFIG.model_copy(update={"layout": layout})

    assert (layout == "page_first") == sglang_config(config).is_page_first_layout


class Odd(NamesByConfiguration):
    """An object whose answers are odd in one way each."""

    def __init__(self) -> None:
        self.form = ""
        self.pages = {}
        self.cleared: object = None

    def batch_exists(self, keys: list[str]) -> int:
        return "two"  # type: ignore[return-value]

    def batch_set(self, keys: list[str], values: list[memoryview]) -> bool:
        super().batch_set(keys[:1], values[:1])
        return False

    def batch_get(self, keys: list[str], targets: list[memoryview]) -> list[bytes | None]:  # type: ignore[override]
        return [self.pages.get(key) for key in keys]

    def clear(self) -> object:  # type: ignore[override]
        return self.cleared


def test_answers_of_an_object_are_taken_for_what_they_are() -> None:
    """Goal: nothing is made up for an object. Method: a count that is none, half a put, pages that lie elsewhere."""
    made = Odd()
    store = ForeignBackend(made)

    with pytest.raises(StorageError, match="batch_exists of 1 keys answers 'two', expected a number"):
        store.exists(["a"])
    assert [True, False] == put(store, {"a": b"page", "b": b"more"})
    assert [b"page", None] == get(store, ["a", "b"], 4)
    assert [None] == get(store, ["a"], 5)
    store.clear()
    made.cleared = False
    with pytest.raises(StorageError, match="clear answers False"):
        store.clear()
    with pytest.raises(Unsupported):
        store.stats()
    store.close()
    with pytest.raises(StorageClosed, match="ForeignBackend is closed"):
        store.read(["a"], [view(bytes(4))])


class AsksForMore(NamesByConfiguration):
    """A store whose presence query takes what SGLang tells beside the keys."""

    def __init__(self) -> None:
        self.form, self.pages = "", {}
        self.told: list[object] = []

    def batch_exists(self, keys: list[str], extra_info: SglangExtraInfo | None = None) -> int:
        self.told.append(extra_info and extra_info.prefix_keys)
        return super().batch_exists(keys)


def test_a_foreign_store_is_told_the_prefix() -> None:
    """Goal: a store for SGLang is asked as SGLang asks. Method: told, not told, and one that takes only keys."""
    made = AsksForMore()
    store = ForeignBackend(made)
    put(store, {"a": b"page"})
    plain = ForeignBackend(Odd())
    put(plain, {"a": b"page"})

    assert (1, 1) == (store.exists(["a"]), store.after(["x", "y"]).exists(["a"]))
    assert [None, ["x", "y"]] == made.told
    assert [b"page"] == get(plain.after(["x"]), ["a"], 4)


TENSORS = """
import warnings
import torch
from hicache_ref.storage.foreign import ForeignBackend, SglangExtraInfo, sglang_config
from tests.storage.offered import NamesByConfiguration
warnings.simplefilter("error")

class Tensors(NamesByConfiguration):
    def __init__(self):
        self.form, self.pages = "", {}
    def set(self, key, value):
        self.pages.setdefault(key, value.clone())
        return True
    def get(self, key, target_location):
        page = self.pages.get(key)
        return page.view(torch.int16) if page is not None and page.numel() % 2 == 0 else page

store = ForeignBackend(Tensors())
pages = {"a": b"page", "b": b"odd", "c": b""}
assert [True] * 3 == store.write(list(pages), [memoryview(page) for page in pages.values()])
for key, page in pages.items():
    view = memoryview(bytearray(len(page)))
    assert [True] == store.read([key], [view]) and page == bytes(view)
    assert [False] == store.read([key], [memoryview(bytearray(9))])
"""


LAZY = """
import sys
from hicache_ref.storage.config import StorageConfig
from hicache_ref.storage.registry import open_backend
config = StorageConfig(model_name="m", page_size=16)
for name in ("ImportsInAMethod", "ImportsInAnInnerFunction", "NamesTensorsAlone"):
    assert "torch" not in sys.modules or name != "ImportsInAMethod"
    store = open_backend(f"tests.storage.tensors:{name}", config)
    assert store.values == "tensors", name
    assert [True] == store.write(["k"], [memoryview(b"page")])
    view = memoryview(bytearray(4))
    assert [True] == store.read(["k"], [view]) and b"page" == bytes(view)
assert open_backend("tests.storage.tensors:WorksWithoutTorch", config).values == "memoryviews"
"""


def test_values_are_tensors_wherever_torch_is_imported() -> None:
    """Goal: no store of tensors gets memoryviews. Method: imports in methods and in annotations; the class besides."""
    need(find_spec("torch") is not None, "torch", "that tensors are handed over")
    root = str(Path(__file__).parents[2])
    run = subprocess.run([sys.executable, "-c", LAZY], cwd=root, capture_output=True, text=True)

    assert (0, "") == (run.returncode, run.stderr[-2000:] if run.returncode else "")


def test_a_store_of_tensors_without_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no memoryviews on the sly. Method: a class that imports torch in a method, where there is none."""
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(Misuse, match=r"ImportsInAMethod works with torch: .*, expected it to be installed"):
        open_backend("tests.storage.tensors:ImportsInAMethod", CONFIG)


def test_values_are_tensors_where_torch_is_loaded() -> None:
    """Goal: SGLang's objects get what they expect. Method: a store of tensors, in a process that has loaded torch."""
    need(find_spec("torch") is not None, "torch", "that tensors are handed over")
    root = str(Path(__file__).parents[2])
    run = subprocess.run([sys.executable, "-c", TENSORS], cwd=root, capture_output=True, text=True)

    assert (0, "") == (run.returncode, run.stderr[-2000:] if run.returncode else "")


def test_stores_load_no_torch() -> None:
    """Goal: a store is light. Method: everything of the package, imported in a new process."""
    code = "import sys, hicache_ref.storage.conformance, hicache_ref.storage.levels; print('torch' in sys.modules)"
    root = str(Path(__file__).parents[2])

    assert "False\n" == subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True).stdout
