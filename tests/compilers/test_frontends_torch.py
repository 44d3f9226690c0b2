"""PyTorch models: exported programs and modules, names, batch sizes, effects that are refused, errors with places."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tvm_backend  # noqa: E402
from tvm_backend.errors import CompileError, InvalidModel, UnsupportedOperators  # noqa: E402
from tvm_backend.frontends import imported, prepared  # noqa: E402


class Network(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Embeddings of tokens under a mask, normalised; a buffer, a constant, a layer that only training needs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(10, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.dropout = torch.nn.Dropout(0.5)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, tokens: Any, mask: Any) -> dict[str, Any]:
        found = (self.embedding(tokens) * mask.unsqueeze(-1)).sum(1) + self.shift
        hidden = self.dropout(self.norm(found)) * torch.tensor([1.0, 2.0, 3.0, 4.0])
        return {"hidden": hidden, "best": hidden.argmax(-1)}


def inputs(rows: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(rows)
    tokens = torch.randint(0, 10, (rows, 3), generator=generator)
    return tokens, torch.rand((rows, 3), generator=generator) > 0.5


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize("how", ["module", "program", "file"])
def test_equal_to_torch(how: str, tmp_path: Path) -> None:
    network = Network().eval()
    given: Any = network
    if how != "module":
        batch = torch.export.Dim("batch")
        given = torch.export.export(network, inputs(2), dynamic_shapes=({0: batch}, {0: batch}))
    if how == "file":
        torch.export.save(given, tmp_path / "network.pt2")
        given = tmp_path / "network.pt2"
    examples = inputs(2) if how == "module" else None
    compiled = tvm_backend.compile(given, examples, batch_sizes=(1, 4), target="compute_80")
    assert (compiled.inputs, compiled.outputs) == (("tokens", "mask"), ("hidden", "best"))
    for rows in (1, 4):
        got = compiled.run_local(*(tensor.numpy() for tensor in inputs(rows)))
        with torch.inference_mode():
            expected = network(*inputs(rows))
        np.testing.assert_allclose(got.hidden, expected["hidden"].numpy(), rtol=1e-4, atol=1e-5)
        assert np.array_equal(got.best, expected["best"].numpy())


class Indices(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Indices for one axis, for neighbours, for axes apart, for all: some count from the end, some stretch."""

    def forward(self, x: Any, i: Any, j: Any) -> tuple[Any, ...]:
        return x[i], x[:, i], x[i, j], x[:, i, j], x[i, :, j], x[:, i[None], j[:, None]], x[i, j, i]


@pytest.mark.usefixtures("softgpu")
def test_indices() -> None:
    given = (torch.arange(60.0).reshape(3, 4, 5), torch.tensor([0, -1, 2]), torch.tensor([-1, 1, -3]))
    compiled = tvm_backend.compile(torch.export.export(Indices(), given), target="ptx", name="indices")
    results = compiled.run_local(*(tensor.numpy() for tensor in given))
    for result, expected in zip(results, Indices()(*given), strict=True):
        np.testing.assert_array_equal(result, expected.numpy(), strict=True)


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize("how", [{"size": (7, 3)}, {"scale_factor": (1.5, 2)}])
def test_pictures_made_larger_by_their_nearest_elements(how: dict[str, Any]) -> None:
    class Larger(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.interpolate(x, mode="nearest", **how)

    x = torch.arange(60.0).reshape(1, 3, 4, 5)
    compiled = tvm_backend.compile(torch.export.export(Larger(), (x,)), target="ptx", name="larger")
    np.testing.assert_array_equal(compiled.run_local(x.numpy()), Larger()(x).numpy(), strict=True)


def test_pictures_made_larger_by_factors_that_leave_parts_of_elements() -> None:
    network = torch.nn.Upsample(scale_factor=1.7)
    with pytest.raises(UnsupportedOperators, match="whole numbers"):
        imported(network, torch.zeros(1, 3, 4, 5), None, "larger")


def test_conversions_with_another_result_than_torch_has_are_refused() -> None:
    class Quarter(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x / 4

    with pytest.raises(UnsupportedOperators, match=r"TVM makes int64\[3\] of it, PyTorch float32\[3\]") as caught:
        imported(Quarter(), torch.arange(3), None, "quarter")
    assert [place.operator for place in caught.value.operators] == ["aten.div.Tensor"]


def test_names_and_shapes() -> None:
    made = imported(Network().eval(), inputs(2), None, "network")
    assert [entry.batch_size for entry in made.functions] == [2]
    assert {"embedding.weight", "norm.running_var", "shift"} <= set(made.constants)


def test_what_trains_is_refused() -> None:
    with pytest.raises(InvalidModel, match=r"call \.eval\(\) first") as caught:
        imported(Network().train(), inputs(2), None, "network")
    assert "norm.running_mean" in caught.value.names


def test_one_error_lists_all_that_cannot_become_kernels() -> None:
    class Bad(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            noise = torch.nn.functional.dropout(x, training=True)
            return torch.nonzero(x), torch.linalg.eigvalsh(x), noise

    with pytest.raises(UnsupportedOperators) as caught:
        imported(Bad(), torch.ones(3, 3), None, "bad")
    operators = {place.operator: place for place in caught.value.operators}
    assert set(operators) == {"aten.nonzero.default", "aten._linalg_eigh.default", "aten.native_dropout.default"}
    assert all("test_frontends_torch.py:" in place.where for place in operators.values())
    assert "random" in operators["aten.native_dropout.default"].reason


def test_a_branch_on_values_is_refused() -> None:
    class Branch(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))

    with pytest.raises(UnsupportedOperators, match="a branch") as caught:
        imported(Branch(), torch.ones(3), None, "branch")
    assert [place.operator for place in caught.value.operators] == ["cond"]


def test_models_and_examples_that_do_not_fit(tmp_path: Path) -> None:
    network = Network().eval()
    with pytest.raises(InvalidModel, match="example_inputs needs tokens, mask"):
        imported(network, None, None, "network")
    with pytest.raises(CompileError, match="torch cannot export"):
        imported(network, inputs(2)[0], None, "network")
    program = torch.export.export(network, inputs(2))
    with pytest.raises(InvalidModel, match="takes a batch of 2 only"):
        imported(program, None, (4,), "network")
    (tmp_path / "bad.pt2").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(InvalidModel, match=r"torch\.export\.save"):
        imported(tmp_path / "bad.pt2", None, None, "bad")


def content(model: Any) -> str:
    digest = hashlib.sha256()
    prepared(model, inputs(2), None, "m").content(digest)
    return digest.hexdigest()


def test_content_is_graph_and_weights() -> None:
    network, other = Network().eval(), Network().eval()
    program = torch.export.export(network, inputs(2))
    assert content(network) == content(Network().eval())
    assert content(program) == content(torch.export.export(network, inputs(2)))
    with torch.no_grad():
        other.norm.running_var[0] += 1
    assert content(other) != content(network)
    assert content(torch.export.export(network.double(), inputs(2))) != content(program)
