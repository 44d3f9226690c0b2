"""Every error keeps its type, message and fields through pickle, and states its fields."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
from types import ModuleType
from typing import Any

import pytest

from kaas import errors
from kaas.errors import KaasError, UnknownSymbol


def subclasses(cls: type[KaasError]) -> list[type[KaasError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in subclasses(child))]


ERRORS = sorted(
    {cls for cls in subclasses(KaasError) if cls.__module__.partition(".")[0] == "kaas"}, key=lambda cls: cls.__name__
)
"""The errors of kaas itself: compilers, which other tests may have loaded, have errors of their own."""


def example(cls: type[KaasError]) -> KaasError:
    """Return an error with a value in every declared field."""
    declared = {name for base in cls.__mro__ for name in inspect.get_annotations(base)}
    values: dict[str, Any] = {name: (name, 1) for name in declared}
    return cls(f"something about {cls.__name__}", **values)


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_round_trip(cls: type[KaasError]) -> None:
    error = example(cls)
    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(back) is cls
        assert str(back) == str(error) == f"something about {cls.__name__}"
        assert back.fields == error.fields


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_every_error_is_documented_and_public(cls: type[KaasError]) -> None:
    assert cls.__doc__
    assert getattr(errors, cls.__name__) is cls


def test_fields_that_were_not_given_are_absent() -> None:
    error = UnknownSymbol("no kernel x", symbol="x")
    assert error.fields == {"symbol": "x"}
    assert pickle.loads(pickle.dumps(error)).fields == {"symbol": "x"}
    with pytest.raises(AttributeError):
        _ = error.near


def test_undeclared_fields_are_a_mistake() -> None:
    with pytest.raises(TypeError, match="colour"):
        UnknownSymbol("no kernel x", colour="red")


def test_errors_are_subclasses_of_pythons_errors() -> None:
    assert issubclass(errors.InvalidGraph, ValueError)
    assert issubclass(errors.InvalidRequest, ValueError)
    assert issubclass(errors.DeadlineExceeded, TimeoutError)


def test_a_cause_of_a_class_that_is_not_here_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cause from a package of executors passes through the pool's process to a program that has the package."""
    there = ModuleType("only_there")
    exec("class Full(Exception): pass", there.__dict__)
    error = UnknownSymbol("no kernel x", symbol="x")
    error.__cause__ = there.Full("no space left")
    with monkeypatch.context() as known:
        known.setitem(sys.modules, "only_there", there)
        sent = pickle.dumps(error)
    arrived = pickle.loads(sent)
    assert (arrived.message, arrived.fields, arrived.__cause__) == ("no kernel x", {"symbol": "x"}, None)
    monkeypatch.setitem(sys.modules, "only_there", there)
    cause = pickle.loads(pickle.dumps(arrived)).__cause__
    assert (type(cause), str(cause)) == (there.Full, "no space left")
