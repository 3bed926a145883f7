"""Stores by name: what a URL opens."""

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from pydantic import JsonValue

from hicache_ref.storage.base import Backend, Misuse, checked
from hicache_ref.storage.config import StorageConfig
from hicache_ref.storage.files import FilesBackend, FilesOptions
from hicache_ref.storage.foreign import ForeignBackend, sglang_config
from hicache_ref.storage.memory import MemoryBackend
from hicache_ref.storage.mooncake import MooncakeBackend, MooncakeOptions
from hicache_ref.storage.redis import RedisBackend, RedisOptions
from hicache_ref.vocabulary.base import Frozen


class StorageUrl(Frozen):
    """The parts of a URL; `pkg.module:Class` has the scheme `object` and is its own path."""

    scheme: str
    host: str = ""
    port: int | None = None
    path: str = ""
    options: dict[str, str] = {}


@dataclass(frozen=True)
class _Kind:
    """A kind of store."""

    form: str
    options: type[Frozen]
    make: Callable[[StorageUrl, Any], Backend]
    shared: bool
    """Whether another process that opens the URL finds the same pages."""

    guest: Mapping[str, str] = field(default_factory=dict)
    """Options of one who comes and goes: nothing of the store goes with it."""


class _NoOptions(Frozen):
    pass


def _files(url: StorageUrl, options: FilesOptions) -> Backend:
    if not url.path.strip("/"):
        raise Misuse(f"no folder in the URL, expected {KINDS['files'].form}")
    # files://a/b is the folder a/b seen from here; files:///a/b is /a/b.
    return FilesBackend(url.host + url.path, options)


def _memory(url: StorageUrl, options: _NoOptions) -> Backend:
    return MemoryBackend(url.host + url.path or "default")


def _mooncake(url: StorageUrl, options: MooncakeOptions) -> Backend:
    return MooncakeBackend(url.host or "127.0.0.1", url.port or 50051, options)


def _redis(url: StorageUrl, options: RedisOptions) -> Backend:
    number = url.path.strip("/") or "0"
    if not number.isdecimal():
        raise Misuse(f"database {number!r}, expected a number: {KINDS['redis'].form}")
    return RedisBackend(url.host or "127.0.0.1", url.port or 6379, int(number), options)


KINDS: dict[str, _Kind] = {
    "files": _Kind("files:///FOLDER", FilesOptions, _files, shared=True),
    "memory": _Kind("memory://NAME", _NoOptions, _memory, shared=False),
    "mooncake": _Kind("mooncake://HOST:PORT", MooncakeOptions, _mooncake, shared=True, guest={"segment_mib": "0"}),
    "redis": _Kind("redis://HOST:PORT/DB", RedisOptions, _redis, shared=True),
}
"""The stores of this package, by scheme."""

_OBJECT = re.compile(r"(?P<target>[A-Za-z_][\w.]*:[A-Za-z_][\w.]*)(\?(?P<query>.*))?")
_FORMS = "pkg.module:Class"


def parse_url(text: str) -> StorageUrl:
    """The parts of the URL. Raises Misuse, naming the forms there are."""
    forms = ", ".join([*(kind.form for kind in KINDS.values()), _FORMS])
    if "://" not in text:
        found = _OBJECT.fullmatch(text)
        if found is None or found["target"].split(":")[0] in KINDS:
            raise Misuse(f"{text!r} names no store, expected one of {forms}")
        return StorageUrl(scheme="object", path=found["target"], options=_options(text, found["query"] or ""))
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise Misuse(f"{text!r}: {error}, expected one of {forms}") from None
    if parts.scheme not in KINDS:
        raise Misuse(f"{text!r}: unknown kind of store {parts.scheme!r}, expected one of {forms}")
    host = parts.netloc.rpartition("@")[2].partition(":")[0] if port is None else (parts.hostname or "")
    return StorageUrl(
        scheme=parts.scheme,
        host=unquote(host),
        port=port,
        path=unquote(parts.path),
        options=_options(text, parts.query),
    )


def _options(text: str, query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    if len(dict(pairs)) < len(pairs):
        raise Misuse(f"{text!r}: an option comes twice, expected each once")
    return dict(pairs)


def guest_url(text: str) -> str:
    """The URL by which one opens the store who comes and goes. Raises Misuse."""
    url = parse_url(text)
    if url.scheme == "object" or not KINDS[url.scheme].guest:
        return text
    return text.partition("?")[0] + "?" + urlencode({**url.options, **KINDS[url.scheme].guest})


def open_backend(text: str, config: StorageConfig) -> Backend:
    """The store that the URL names, opened. Raises Misuse for a bad URL, StorageError where it cannot be opened."""
    url = parse_url(text)
    if url.scheme == "object":
        return open_object(url.path, config.model_copy(update={"extra": config.extra | url.options}))
    kind = KINDS[url.scheme]
    return kind.make(url, checked(kind.options, dict(url.options), text))


def open_object(target: str, config: StorageConfig) -> Backend:
    """What `pkg.module:Class` makes: a Backend, or an object with the methods of SGLang's HiCacheStorage.

    It is called with as many of (configuration, extra options) as it requires, and with the configuration also where
    that is optional. Raises Misuse.
    """
    module_name, _, names = target.partition(":")
    try:
        made: Any = importlib.import_module(module_name)
        for name in names.split("."):
            made = getattr(made, name)
        made = _called(made, sglang_config(config), dict(config.extra))
    except Exception as error:
        raise Misuse(f"{target}: {type(error).__name__}: {error}, expected a class that can be made") from error
    if all(callable(getattr(made, name, None)) for name in ("read", "write", "exists", "close")):
        backend: Backend = made
        return backend
    return ForeignBackend(made)


def open_dynamic(extra: Mapping[str, JsonValue], config: StorageConfig) -> Backend:
    """The store that the settings of SGLang's `dynamic` backend name. Raises Misuse."""
    for name in ("backend_name", "module_path", "class_name"):
        if not isinstance(extra.get(name), str) or not extra[name]:
            raise Misuse(f"{name} is {extra.get(name)!r}, expected a text: the dynamic backend needs it")
    return open_object(
        f"{extra['module_path']}:{extra['class_name']}", config.model_copy(update={"extra": dict(extra)})
    )


def _called(made: Any, *offered: Any) -> Any:
    """What `made` makes of the configuration and the extra options."""
    signature = inspect.signature(made)
    parameters = signature.parameters.values()
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return made(*offered)
    bound = signature.bind_partial(*offered[: sum(map(_is_required, parameters))])
    if not bound.arguments:
        bound.arguments.update({each.name: offered[0] for each in parameters if _is_configuration(each)})
    return made(*bound.args, **bound.kwargs)


def _is_required(parameter: inspect.Parameter) -> bool:
    positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return positional and parameter.default is parameter.empty


def _is_configuration(parameter: inspect.Parameter) -> bool:
    """Whether the parameter is called as SGLang's stores call their configuration, or has a type called so."""
    if parameter.kind is parameter.VAR_KEYWORD:
        return False
    return parameter.name in ("config", "storage_config") or "StorageConfig" in str(parameter.annotation)
