"""Storage settings: three kinds of files and JSON text become one typed record, or one clear line."""

import sys
from pathlib import Path

import pytest

from hicache_ref.storage.base import Misuse
from hicache_ref.storage.config import StorageConfig
from hicache_ref.storage.settings import EXPECTED, parse_config, parse_settings
from hicache_ref.vocabulary.storage import StorageSettings
from tests.storage.servers import need

EXTRA = {"path": "/var/pages", "depth": [1, 2]}
WANTED = StorageSettings(prefetch_threshold=64, extra=EXTRA)
JSON = '{"prefetch_threshold": 64, "prefetch_timeout_max": null, "path": "/var/pages", "depth": [1, 2]}'
YAML = "prefetch_threshold: 64\nprefetch_timeout_max: null\npath: /var/pages\ndepth: [1, 2]\n"


def test_the_same_settings_in_every_form(tmp_path: Path) -> None:
    """Goal: one meaning. Method: text, .json, .yaml and .yml; TOML, which has no null, without that key."""
    need("yaml" in sys.modules or _has_yaml(), "pyyaml", "settings in YAML")
    for name, text in {"a.json": JSON, "a.yaml": YAML, "a.YML": YAML}.items():
        (tmp_path / name).write_text(text)
        assert WANTED == parse_settings(f"@{tmp_path / name}")
    (tmp_path / "a.toml").write_text('prefetch_threshold = 64\npath = "/var/pages"\ndepth = [1, 2]\n')

    assert WANTED == parse_settings(JSON)
    assert WANTED.model_copy(update={"prefetch_timeout_max": 30.0}) == parse_settings(f"@{tmp_path / 'a.toml'}")
    assert StorageSettings(prefetch_timeout_max=30.0) == parse_settings("{}")


def _has_yaml() -> bool:
    try:
        import yaml  # noqa: F401
    except ImportError:
        return False
    return True


def test_what_holds_where_nothing_is_said() -> None:
    """Goal: the defaults are upstream's. Method: each key, from settings that say nothing, as SGLang has it."""
    assert {
        "prefetch_policy": "timeout",
        "prefetch_threshold": 256,
        "prefetch_timeout_base": 2.0,
        "prefetch_timeout_per_ki_token": 0.1,
        "prefetch_timeout_max": 30.0,
        "pass_prefix_keys": False,
        "draft": True,
        "extra": {},
    } == parse_settings("{}").model_dump()


def test_names_of_sglang_are_understood() -> None:
    """Goal: an operator's text needs no rewriting. Method: its two names, and both names of one key."""
    text = '{"hicache_storage_pass_prefix_keys": true, "hicache_storage_prefetch_policy": "wait_complete"}'
    settings = parse_settings(text)

    assert (True, "wait_complete", {}) == (settings.pass_prefix_keys, settings.prefetch_policy, settings.extra)
    with pytest.raises(Misuse, match="says pass_prefix_keys again, expected it once"):
        parse_settings('{"pass_prefix_keys": true, "hicache_storage_pass_prefix_keys": true}')


NUMERIC = [name for name, words in EXPECTED.items() if "number" in words]


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize("value", ["true", "-1", "NaN", "Infinity", '"12"', "[1]"])
def test_numbers_are_numbers(name: str, value: str) -> None:
    """Goal: no truth value, negative, NaN or infinity gets in. Method: each numeric key with each."""
    with pytest.raises(Misuse, match=rf"storage settings:1: {name} is .*, expected ") as caught:
        parse_settings(f'{{"{name}": {value}}}')

    assert EXPECTED[name] in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.json", '{\n"prefetch_policy": "soon"\n}', "a.json:2: prefetch_policy is 'soon', expected best_effort or"),
        ("a.json", '{\n"a": 1,\n"a": 2}', "a.json:2: 'a' twice, expected a table of settings"),
        ("a.json", '{"a": 1,\n}', "a.json:2: no JSON"),
        ("a.json", "[1]", r"a.json:1: \[1\], expected a table of settings"),
        ("a.toml", "a = 1\nb =\n", "a.toml:2: no TOML"),
        ("a.toml", "x = 1\nprefetch_threshold = -2\n", "a.toml:2: prefetch_threshold is -2, expected a whole number"),
        ("a.toml", "day = 2026-01-01\n", "a.toml:1: day is .*, expected a value that JSON has"),
        ("a.toml", "prefetch_timeout_base = 31\n", "a.toml:1: prefetch_timeout_base is 31, expected .* no more than"),
        ("a.txt", "{}", "a.txt: unknown kind of file, expected one of .json, .toml, .yaml, .yml"),
        ("a.json", "\udcff", "a.json: cannot be read"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, name: str, text: str, what: str) -> None:
    """Goal: the operator sees file, line, key, value and what was expected. Method: a file with one mistake each."""
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(Misuse, match=what) as caught:
        parse_settings(f"@{tmp_path / name}")
    assert 1 == len(str(caught.value).splitlines())


def test_a_file_that_is_not_there() -> None:
    """Goal: one line for it too. Method: a name that nothing has."""
    with pytest.raises(Misuse, match=r"absent\.json: cannot be read"):
        parse_settings("@absent.json")


def test_yaml_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the package is named. Method: an import that fails."""
    (tmp_path / "a.yaml").write_text(YAML)
    monkeypatch.setitem(sys.modules, "yaml", None)

    with pytest.raises(Misuse, match=r"a\.yaml: yaml: .*hicache-ref\[yaml\], or a \.json or \.toml file"):
        parse_settings(f"@{tmp_path / 'a.yaml'}")


def test_a_mistake_in_yaml(tmp_path: Path) -> None:
    """Goal: its line is told. Method: a bracket that is not closed."""
    need(_has_yaml(), "pyyaml", "settings in YAML")
    (tmp_path / "a.yaml").write_text("a: 1\nb: [1\n")

    with pytest.raises(Misuse, match=r"a\.yaml:[23]: no YAML"):
        parse_settings(f"@{tmp_path / 'a.yaml'}")


def test_configurations_are_read_the_same_way() -> None:
    """Goal: `--config` changes single fields. Method: one field, one that is not there, one that cannot be."""
    default = StorageConfig(model_name="m", page_size=16)

    assert default.model_copy(update={"dtype": "fp8"}) == parse_config('{"dtype": "fp8"}', default)
    with pytest.raises(Misuse, match="storage configuration: unknown option 'colour', expected one of: model_name"):
        parse_config('{"colour": 1}', default)
    with pytest.raises(Misuse, match=r"storage configuration: .*tp_rank is 4, expected less than tp_size = 1"):
        parse_config('{"tp_rank": 4}', default)
