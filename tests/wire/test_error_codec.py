"""Errors keep class, message, fields and causes as bytes, and nothing runs where they are read."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas import errors
from kaas.errors import InvalidLiteral, KaasError, UnknownSymbol, WrongScalar, declared
from kaas.wire.error_codec import CAUSES_AT_MOST, decode_error, encode_error

ERRORS = sorted((cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, KaasError)), key=str)


def back(error: KaasError, *, open_cause: bool = True) -> KaasError:
    return decode_error(encode_error(error), open_cause=open_cause)


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_round_trip(cls: type[KaasError]) -> None:
    values: dict[str, Any] = {name: (name, 1, {"a": ("b", b"c")}, [2.5, None]) for name in declared(cls)}
    found = back(cls(f"something about {cls.__name__}", **values))
    assert type(found) is cls
    assert str(found) == f"something about {cls.__name__}"
    assert found.fields == values


plain = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)
values = st.recursive(
    plain,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(0, 9), inner),
    max_leaves=8,
)


@given(values, st.text())
def test_values_are_decoded_as_they_were(value: Any, message: str) -> None:
    found = back(InvalidLiteral(message, value=value))
    assert repr(found.fields) == repr({"value": value})
    assert str(found) == message


@pytest.mark.parametrize("value", [1j, {1, 2}, 2**70, object, pytest, KaasError("x")], ids=repr)
def test_other_values_become_their_words(value: Any) -> None:
    assert back(WrongScalar("wrong", value=value)).fields == {"value": repr(value)}


class Shy:
    """A class that no text shows."""

    def __repr__(self) -> str:
        raise ValueError("no")


def test_values_that_cannot_be_encoded_become_text() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert "[...]" in repr(back(WrongScalar("wrong", value=endless)).fields)
    found = back(WrongScalar("wrong", value={("a", 1): (2,), "shy": Shy()}))
    assert found.fields == {"value": {"('a', 1)": (2,), "shy": "<Shy, whose repr raises ValueError>"}}


def test_text_that_is_no_text() -> None:
    found = back(errors.CorruptModel("no model at \udcff", path="\udcff", reason="x"))
    assert str(found) == "no model at \\udcff"
    assert found.fields == {"path": "\\udcff", "reason": "x"}


# --- classes


def foreign(monkeypatch: pytest.MonkeyPatch, **members: Any) -> Callable[..., KaasError]:
    """A subclass in a foreign module."""
    module = ModuleType("of_somebody")
    made = type("Mine", (UnknownSymbol,), {"__module__": "of_somebody", "__qualname__": "Mine", **members})
    vars(module)["Mine"] = made
    monkeypatch.setitem(sys.modules, "of_somebody", module)
    return made


def test_a_class_of_an_imported_module_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    cls = foreign(monkeypatch, __annotations__={"more": "int"})
    found = back(cls("mine", more=3, symbol="x"))
    assert type(found) is cls
    assert found.fields == {"more": 3, "symbol": "x"}


def test_an_unknown_class_is_replaced_by_a_known_base(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_error(foreign(monkeypatch, __annotations__={"more": "int"})("mine", more=3, symbol="x"))
    monkeypatch.delitem(sys.modules, "of_somebody")
    found = decode_error(data)
    assert type(found) is UnknownSymbol
    assert found.fields == {"symbol": "x"}


def test_a_class_that_is_made_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(self: KaasError, one: str, another: str) -> None:
        UnknownSymbol.__init__(self, one + another)

    assert type(back(foreign(monkeypatch, __init__=init)("a", "b"))) is UnknownSymbol


def test_a_class_that_refuses_its_fields_is_replaced_by_its_base(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(self: KaasError, message: str, **fields: Any) -> None:
        if "symbol" not in fields:
            raise ValueError("no symbol")
        UnknownSymbol.__init__(self, message, **fields)

    data = encode_error(foreign(monkeypatch, __init__=init)("mine", symbol="x"))
    found = decode_error(data.replace(b"symbol", b"nobody"))
    assert type(found) is UnknownSymbol
    assert found.fields == {}


@pytest.mark.parametrize("name", [("os", "system"), ("builtins", "SystemExit"), ("no.such.module", "Error"),
                                  ("kaas.errors", "KaasError.__init__"), ("kaas.errors", "")])  # fmt: skip
def test_nothing_but_errors_of_ours_is_made(name: tuple[str, str]) -> None:
    modules = set(sys.modules)
    found = decode_error(msgspec.msgpack.encode([[name], "a message", {"symbol": "x"}, None]))
    assert type(found) is KaasError
    assert str(found) == "a message"
    assert set(sys.modules) == modules


def test_no_field_is_set_that_is_not_declared() -> None:
    data = msgspec.msgpack.encode(
        [[("kaas.errors", "UnknownSymbol")], "x", {"__class__": 1, "args": 2, "near": 3}, None]
    )
    found = decode_error(data)
    assert type(found) is UnknownSymbol
    assert found.fields == {"near": 3}
    assert found.args == ("x",)


@given(st.binary())
def test_malformed_bytes_are_decoded_as_an_error(data: bytes) -> None:
    assert "cannot be read" in str(decode_error(data))


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 100_000,
        msgspec.msgpack.encode([[], "x", {"value": msgspec.msgpack.Ext(9, b"")}, None]),
        msgspec.msgpack.encode([[], "x", {"value": msgspec.msgpack.Ext(1, b"\xc1")}, None]),
        encode_error(KaasError("x"))[:-1],
        encode_error(KaasError("text")).replace(b"text", b"\xff\xfe  "),
    ],
    ids=["nested", "unknown extension", "broken extension", "cut off", "no text"],
)
def test_hostile_bytes(data: bytes) -> None:
    assert type(decode_error(data)) is KaasError


# --- causes


def raised(error: KaasError, cause: BaseException) -> KaasError:
    error.__cause__ = cause
    return error


def test_causes_of_known_classes_are_kept() -> None:
    middle = raised(UnknownSymbol("middle", symbol="x"), ZeroDivisionError("deep"))
    for found in (
        back(raised(KaasError("top"), middle)),
        back(back(raised(KaasError("top"), middle), open_cause=False)),
    ):
        cause = found.__cause__
        assert type(cause) is UnknownSymbol
        assert cause.fields == {"symbol": "x"}
        assert type(cause.__cause__) is ZeroDivisionError


class Trap(Exception):
    """Unpickling it makes a folder."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, self.args


def test_a_foreign_cause_stays_sealed_until_it_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "opened"
    passed_on = back(raised(KaasError("top"), Trap(str(folder))), open_cause=False)
    assert passed_on.__cause__ is None
    assert back(passed_on, open_cause=False).__cause__ is None
    assert not folder.exists()
    back(passed_on)
    assert folder.exists()
    found = back(back(raised(KaasError("top"), ValueError("of mine")), open_cause=False))
    assert repr(found.__cause__) == "ValueError('of mine')"
    assert repr(pickle.loads(pickle.dumps(found)).__cause__) == "ValueError('of mine')"


def test_a_cause_that_cannot_travel_is_left_out() -> None:
    class Local(Exception):
        pass

    assert back(raised(KaasError("top"), Local())).__cause__ is None


def test_a_chain_without_end_is_cut() -> None:
    one, another = KaasError("one"), KaasError("another")
    raised(one, raised(another, one))
    found: BaseException | None = back(one)
    for _ in range(CAUSES_AT_MOST):
        assert found is not None
        found = found.__cause__
    assert found is not None
    assert found.__cause__ is None
