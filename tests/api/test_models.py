"""Models through a pool: constants that are put once, variants chosen by shape, and all that functions are good for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from typer.testing import CliRunner

import kaas
from kaas import errors
from kaas.cli.main import app
from tests.api.conftest import DEVICE_BYTES, add_task, numbers
from tests.api.models import LARGEST, V, W, adder, crasher, doubler, expected, inputs

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def pool(start: Callable[..., bool]) -> None:
    start(devices=[kaas.Device("software", DEVICE_BYTES)])


@pytest.fixture(scope="module")
def function(pool: None) -> kaas.Function:  # noqa: ARG001
    return adder(LARGEST, 1, 2).register()


def check(refs: Any, x: Any) -> None:
    """Return the outputs of an invocation; check them."""
    for ref, right in zip(refs, expected(x), strict=True):
        np.testing.assert_array_equal(ray.get(ref), right)


@pytest.mark.parametrize("batch", [1, 2, LARGEST])
def test_shapes_choose(function: kaas.Function, batch: int) -> None:
    given = inputs(batch)
    x, mask = given.values()
    check(function.remote(**given), x)
    check(function.remote(x, mask), x)
    check(function.remote(x, mask=mask), x)
    check(kaas.invoke(function, given), x)
    outputs = function.options(client="ann").remote(x, mask)
    check((outputs.sum, outputs.more), x)
    assert ray.get(outputs.sum).shape == x.shape


def test_constants_are_put_once_and_shared_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[Any] = []
    original = ray.put

    def counting(value: Any) -> Any:
        put.append(value)
        return original(value)

    monkeypatch.setattr(ray, "put", counting)
    function = adder(1, 2, LARGEST).register()
    assert len(put) == 1
    assert sum(array.nbytes for array in put[0]) == W.nbytes + V.nbytes
    monkeypatch.undo()
    kaas.stats(reset=True)
    for batch in (1, 2, LARGEST, 1):
        given = inputs(batch)
        check(function.remote(**given), given["x"])
    tiers = [tier for tier in kaas.stats(reset=True).tiers if tier.tier == "device"]
    assert {tier.function: tier.misses for tier in tiers} == {"adder-1": 1, "adder-2": 0, "adder-8": 1}  # w, none, v


def test_references_follow_the_variant_that_other_inputs_decide(function: kaas.Function) -> None:
    x, mask = inputs(2).values()
    ref = kaas.put(x)
    check(function.remote(ref, mask), x)
    with pytest.raises(errors.UndecidedVariant, match="x: unknown, mask: unknown"):
        function.remote(ref, kaas.put(mask))
    chosen = function.variant(x=x.shape)
    check(chosen.remote(ref, kaas.put(mask)), x)
    assert [task.label for task in chosen.tasks] == ["adder-2"]
    assert [task.label for task in function.tasks] == ["adder-1", "adder-2", "adder-8"]
    with pytest.raises(errors.WrongSize):
        ray.get(chosen.remote(kaas.put(x[:1]), mask).sum)
    alone = adder(2).register()
    check(alone.remote(ref, kaas.put(mask)), x)


def test_inputs_that_fit_no_variant_are_refused_at_once(function: kaas.Function) -> None:
    x, mask = inputs(2).values()
    with pytest.raises(errors.NoVariant, match=r"'adder' was not compiled for x: float32\[3, 256\], mask: bool\[3\]"):
        function.remote(np.zeros((3, 256), np.float32), np.zeros(3, np.bool_))
    with pytest.raises(errors.NoVariant):
        function.variant(x=x.shape).remote(np.ascontiguousarray(x.reshape(256, 2)), mask)  # as many bytes
    with pytest.raises(errors.NoVariant):
        function.remote(x, mask.astype(np.int64))  # an input that no kernel reads is looked at too
    with pytest.raises(errors.MissingInput, match="'adder': input 'mask'"):
        function.remote(x)
    with pytest.raises(errors.UnexpectedInput, match="'adder' has no input 'w'"):
        function.remote(x, mask, w=W)
    with pytest.raises(errors.InvalidRequest, match=r"takes 2 inputs \(x, mask\), not 3"):
        function.remote(x, mask, W)
    with pytest.raises(errors.InvalidRequest, match="given by name"):
        kaas.invoke(function, [x, mask])  # type: ignore[arg-type]


@ray.remote
def in_a_task(function: kaas.Function, x: Any, mask: Any) -> Any:
    return ray.get(function.remote(x, mask).sum)


def test_a_ktask_s_inputs_have_an_order_too() -> None:
    add = kaas.register(add_task(), {"b": numbers(seed=1)})
    np.testing.assert_array_equal(ray.get(add.remote(numbers())), numbers() + numbers(seed=1))
    with pytest.raises(errors.InvalidRequest, match=r"takes 1 inputs \(a\), not 2"):
        add.remote(numbers(), numbers())


def test_a_function_can_be_passed_to_ray_tasks(function: kaas.Function) -> None:
    x, mask = inputs(2).values()
    np.testing.assert_array_equal(ray.get(in_a_task.remote(function, x, mask)), expected(x)[0])
    np.testing.assert_array_equal(
        ray.get(in_a_task.remote(function.variant(mask=2), kaas.put(x), kaas.put(mask))), expected(x)[0]
    )
    assert repr(function) == "<kaas.Function 'adder' in pool 'kaas', 3 variants, constants: w, v>"


def test_outputs_stay_on_the_device(function: kaas.Function) -> None:
    given = inputs(LARGEST)
    outputs = function.options(keep=["sum"]).remote(**given)
    twice = doubler(1, LARGEST).register().variant(x=given["x"].shape).remote(outputs.sum)
    np.testing.assert_array_equal(ray.get(twice), 2 * expected(given["x"])[0])


def test_prefetch_pin_and_flush_take_all_variants() -> None:
    function = adder(1, LARGEST).register()
    ray.get(kaas.prefetch(function))
    kaas.stats(reset=True)
    for batch in (1, LARGEST):
        given = inputs(batch)
        check(function.remote(**given), given["x"])
    tiers = [tier for tier in kaas.stats(reset=True).tiers if tier.tier == "device"]
    assert sum(tier.misses for tier in tiers) == 0
    kaas.pin(function)
    kaas.pin(doubler(1, 2).register())
    pins = [(pin.target, pin.state) for device in kaas.status().devices for pin in device.pins]
    assert pins == [("adder-1, adder-8", "held"), ("doubler-1, doubler-2", "held")]
    kaas.flush(function)  # pinned objects stay
    check(function.remote(**inputs(1)), inputs(1)["x"])
    kaas.unpin(function)
    kaas.unpin()
    assert not any(device.pins for device in kaas.status().devices)
    kaas.flush(function)
    kaas.stats(reset=True)
    check(function.remote(**inputs(1)), inputs(1)["x"])
    assert sum(tier.misses for tier in kaas.stats(reset=True).tiers if tier.tier == "device") == 1


@pytest.mark.full
def test_a_variant_that_ends_devices_is_put_in_quarantine_alone() -> None:
    function = crasher().register()
    good, bad = bytes(1), bytes(2)
    for expected_error in (errors.DeviceLost, errors.DeviceLost, errors.Quarantined):
        with pytest.raises(expected_error):
            ray.get(function.remote(bad))
    assert [held.function for held in kaas.status().quarantined] == ["crash"]
    assert ray.get(function.remote(good)).shape == (1,)
    assert kaas.pardon(function)
    assert not kaas.pardon(function)
    assert {"fine", "crash"} <= set(kaas.status().functions)


def test_a_model_from_a_file(tmp_path: Path) -> None:
    adder(1, 2).save(tmp_path / "adder.kaas")
    given = inputs(2)
    check(kaas.load(tmp_path / "adder.kaas").register().remote(**given), given["x"])


def test_the_command(tmp_path: Path) -> None:
    doubler(1, 2).save(tmp_path / "doubler.kaas")
    x = inputs(2)["x"]
    np.save(tmp_path / "x.npy", x)
    arguments = ["--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / "out"), "--ray", "--profile"]
    result = CliRunner().invoke(app, ["run", str(tmp_path / "doubler.kaas"), *arguments])
    assert result.exit_code == 0, result.output
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "y.npy"), 2 * x)
    assert "without the graph" in result.stdout
    assert "request" in result.stdout
