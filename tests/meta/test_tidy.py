"""The project keeps the house rules, and the checker of the rules sees what breaks them."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from tests.meta.tidy import FILE_LINES_MAX, FUNCTION_LINES_MAX, findings, texts

ROOT = Path(__file__).parents[2]


def test_the_project_keeps_the_house_rules() -> None:
    """Goal: rules that hold, not rules that are written. Method: every text file of the project."""
    found = {name: findings(name, text) for name, text in texts(ROOT)}

    assert [] == [finding for file in found.values() for finding in file]
    assert {"Makefile", ".ci/run", "hicache_ref/vocabulary/keys.py", "tests/meta/tidy.py"} <= found.keys()


def test_every_dependency_is_pinned() -> None:
    """Goal: the same versions everywhere. Method: what pyproject.toml asks for, looked up in constraints.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    pins = [line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]

    assert {2} == {len(pin) for pin in pins}
    assert set() == {re.split("[<>=~ ]", text)[0] for text in asked} - {name.lower() for name, _ in pins}


HEAD = '"""What flows in and out."""\n'


@pytest.mark.parametrize(
    ("name", "text", "finding"),
    [
        ("hicache_ref/vocabulary/a.py", "import hicache_ref.model", "2: vocabulary imports hicache_ref.model"),
        ("hicache_ref/vocabulary/a.py", "from hicache_ref import trace", "2: vocabulary imports hicache_ref.trace"),
        ("hicache_ref/model/a.py", "from hicache_ref.search import walk", "2: model imports hicache_ref.search.walk"),
        ("hicache_ref/model/a.py", "import os, torch.cuda", "2: model imports torch.cuda"),
        ("hicache_ref/requirements/a.py", "from hypothesis import given", "2: requirements imports hypothesis.given"),
        (
            "hicache_ref/requirements/a.py",
            "from hicache_ref.model.state_of import f",
            "2: requirements imports hicache_ref.model.state_of.f",
        ),
        ("hicache_ref/trace.py", "from hicache_ref.model import Model", "2: trace imports hicache_ref.model.Model"),
        (
            "hicache_ref/search/a.py",
            "def f() -> None:\n    'F.'\n    import hicache_ref.oracle",
            "4: search imports hi",
        ),
        ("hicache_ref/odd/a.py", "A = 1", "1: part 'odd' has no place among the layers"),
        ("hicache_ref/model/a.py", "from .b import c", "2: relative import"),
        ("tests/a.py", "def f():\n" + "    f()\n" * FUNCTION_LINES_MAX, "2: f has 71 lines, at most 70"),
        ("tests/a.py", "A = 1\n" * (FILE_LINES_MAX - 1) + "B = 1", "401: 401 lines in a file, at most 400"),
        ("hicache_ref/oracle/a.py", "print(1)", "2: print outside cli and report"),
        ("hicache_ref/trace.py", "class A:\n    pass", "2: no docstring for A"),
        ("hicache_ref/trace.py", "class A:\n    'A.'\n    def f(self) -> int: return 1", "4: no docstring for f"),
        ("hicache_ref/trace.py", "def f(a) -> int:\n    'F.'", "2: f is not annotated throughout"),
        ("hicache_ref/trace.py", "def f(*a: int):\n    'F.'", "2: f is not annotated throughout"),
        ("tests/a.py", "def test_a():\n    'Goal.'\n    f()", "2: nothing in test_a can fail"),
        ("tests/a.py", "def test_a():\n    'Goal.'\n    run_bench()", "2: nothing in test_a can fail"),
        ("tests/a.py", "def test_a():\n    assert f()", "2: test_a does not open with goal and method"),
        ("README.md", "see /work/x", "2: '/work' is a path of one machine"),
        ("README.md", "in `shared/x`", "2: 'shared/' is a folder outside the project"),
        ("README.md", "from https://pypi.org", "2: 'pypi.org' is the host of a registry"),
        ("README.md", "This Issue", "2: 'Issue' is a word about how the project was made"),
        ("README.md", "to do: TODO", "2: 'TODO' is a note to oneself"),
    ],
)
def test_the_checker_sees(name: str, text: str, finding: str) -> None:
    """Goal: no rule that nothing breaks. Method: one small file for each rule and each way around it."""
    (found,) = findings(name, f"{HEAD}{text}\n")

    assert found.startswith(f"{name}:{finding}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hicache_ref/vocabulary/a.py", "import os\nfrom hicache_ref.vocabulary.keys import Key"),
        ("hicache_ref/requirements/a.py", "from hicache_ref.model.state import State"),
        ("hicache_ref/requirements/a.py", "from hicache_ref.model import state"),
        ("hicache_ref/oracle/a.py", "from hicache_ref.search.walk import walk"),
        ("hicache_ref/cli/a.py", "import torch\nimport hicache_ref.faults\nprint(1)"),
        ("hicache_ref/trace.py", "def _f(a): return a"),
        ("tests/a.py", "def test_a():\n    'Goal.'\n    with pytest.raises(E):\n        f()"),
        ("tests/a.py", "def test_a():\n    'Goal.'\n    run_state_machine_as_test(M)"),
        ("README.md", "issued copies, slice(3), https://example.com/work, a.tmp"),
    ],
)
def test_the_checker_lets_pass(name: str, text: str) -> None:
    """Goal: no rule in the way. Method: what is near to a breach and is none."""
    assert [] == findings(name, f"{HEAD}{text}\n")


def test_the_checker_sees_missing_ends() -> None:
    """Goal: the rules about whole files. Method: no newline, no docstring, and an empty file that needs neither."""
    assert ["a.md:1: no newline at the end"] == findings("a.md", "text")
    assert ["tests/a.py:1: no docstring for the module"] == findings("tests/a.py", "A = 1\n")
    assert [] == findings("tests/__init__.py", "")
