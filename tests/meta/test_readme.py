"""The README states figures, and they are true."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_size_of_the_model_is_true() -> None:
    """Goal: a stranger knows what there is to read. Method: count the lines of the folder that the README names."""
    stated = re.search(r"The folder has ([\d,]+)\nlines", (ROOT / "README.md").read_text())
    assert stated is not None

    lines = sum(path.read_text().count("\n") for path in (ROOT / "hicache_ref" / "model").glob("*.py"))

    assert lines == int(stated[1].replace(",", ""))
