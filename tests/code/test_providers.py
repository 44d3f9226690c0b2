"""Provided code: requested once where it runs, with an error where no provider has it."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import kaas
from kaas import errors
from kaas.code import kernels, providers
from kaas.ktask.images import Image
from tests.ktask.strategies import PTX
from tests.providers import install
from tests.timeouts import TIMEOUT_S

NAMED = kaas.Library.provided("shapes", "round", "2")


@pytest.fixture
def install_provider(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Callable[[str, str], Any]], None]:
    """Return a function that installs a provider `shapes` with given results."""
    monkeypatch.setattr(providers, "_provided", {})
    monkeypatch.setattr(providers, "_providers", {})

    def install_images(images: Callable[[str, str], Any]) -> None:
        install(monkeypatch, tmp_path, "shapes", images)

    return install_images


class Recorder:
    """A provider that keeps its requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []

    def __call__(self, name: str, version: str) -> kaas.Library:
        self.requests.append((name, version))
        return kaas.Library.from_ptx(PTX)


def code(library: kaas.Library) -> tuple[Image, ...]:
    (image,) = library.images
    return providers.code(image)


def test_other_images_are_themselves() -> None:
    (image,) = kaas.Library.from_ptx(PTX).images
    assert providers.code(image) == (image,)


def test_a_provider_is_called_once(install_provider: Any) -> None:
    provider = Recorder()
    install_provider(provider)
    assert code(NAMED) == code(NAMED) == kaas.Library.from_ptx(PTX).images
    assert provider.requests == [("round", "2")]


def test_threads_wait_for_one_call_of_the_provider(install_provider: Any) -> None:
    asked, started, go_on = [], threading.Event(), threading.Event()

    def images(name: str, _: str) -> kaas.Library:
        asked.append(name)
        started.set()
        go_on.wait(TIMEOUT_S)
        return kaas.Library.from_ptx(PTX)

    install_provider(images)
    found: list[tuple[Image, ...]] = []
    threads = [threading.Thread(target=lambda: found.append(code(NAMED))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert started.wait(TIMEOUT_S)
    go_on.set()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert found == [kaas.Library.from_ptx(PTX).images] * 4
    assert asked == ["round"]


def test_kept_code_is_bounded(install_provider: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Recorder()
    install_provider(provider)
    monkeypatch.setattr(providers, "KEPT", 2)
    for name in ("a", "b", "c", "b", "a"):
        code(kaas.Library.provided("shapes", name, "2"))
    assert [name for name, _ in provider.requests] == ["a", "b", "c", "a"]


def test_no_such_provider(install_provider: Any) -> None:
    install_provider(lambda *_: kaas.Library.from_ptx(PTX))
    with pytest.raises(errors.MissingProvider, match=r"'colours'.*shapes") as caught:
        code(kaas.Library.provided("colours", "red", "1"))
    error = caught.value
    assert (error.provider, error.name, error.version) == ("colours", "red", "1")
    assert "shapes" in error.installed


def test_an_error_of_a_provider_has_the_requested_name_and_version(install_provider: Any) -> None:
    def images(name: str, version: str) -> kaas.Library:
        raise errors.NotProvided(f"no {name} {version}", has=("1",))

    install_provider(images)
    with pytest.raises(errors.NotProvided, match="no round 2") as caught:
        code(NAMED)
    assert caught.value.fields == {"provider": "shapes", "name": "round", "version": "2", "has": ("1",)}
    assert pickle.loads(pickle.dumps(caught.value)).fields == caught.value.fields


@pytest.mark.parametrize(
    ("failure", "words"),
    [(OSError("disk full"), "OSError: disk full"), (errors.MissingPackage("no nvcc", package="nvcc"), "2: no nvcc")],
)
def test_a_failure_of_a_provider_is_translated_and_not_kept(
    install_provider: Any, failure: Exception, words: str
) -> None:
    outcomes: list[Any] = [failure]

    def images(*_: str) -> kaas.Library:
        if outcomes:
            raise outcomes.pop()
        return kaas.Library.from_ptx(PTX)

    install_provider(images)
    with pytest.raises(errors.ProviderFailed, match=words) as caught:
        code(NAMED)
    assert type(caught.value.__cause__) is type(failure)
    assert caught.value.fields == {"provider": "shapes", "name": "round", "version": "2"}
    assert type(pickle.loads(pickle.dumps(caught.value)).__cause__) is type(failure)
    assert code(NAMED) == kaas.Library.from_ptx(PTX).images


@pytest.mark.parametrize(("answer", "words"), [(NAMED, "another name"), (b"code", "gave bytes"), (None, "NoneType")])
def test_a_provider_that_returns_no_code_is_refused(install_provider: Any, answer: Any, words: str) -> None:
    install_provider(lambda *_: answer)
    with pytest.raises(errors.ProviderFailed, match=words):
        code(NAMED)


def test_a_provider_that_cannot_be_imported(install_provider: Any, tmp_path: Path) -> None:
    install_provider(lambda *_: kaas.Library.from_ptx(PTX))
    (entry_points,) = tmp_path.glob("*.dist-info/entry_points.txt")
    entry_points.write_text("[kaas.libraries]\nshapes = no_such_module:images\n")
    with pytest.raises(errors.ProviderFailed, match="no_such_module"):
        code(NAMED)


def test_kaas_provides_its_own_kernels() -> None:
    own, here = kernels.provided, version("kaas-gpu")
    assert own("nearest_neighbours", here) == kernels.library("nearest_neighbours")
    with pytest.raises(errors.NotProvided, match=r"'\.\./x'; it ships nearest_neighbours"):
        own("../x", here)
    with pytest.raises(errors.NotProvided, match="of KaaS 0") as caught:
        own("nearest_neighbours", "0")
    assert caught.value.has == (here,)
