"""PyTorch models: exported programs and modules, names, batch sizes, refused effects, errors with places."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tvm_backend  # noqa: E402
from tvm_backend.errors import CompileError, InvalidModel, UnsupportedOperators  # noqa: E402
from tvm_backend.frontends import imported, prepared  # noqa: E402


class Network(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Normalised embeddings of tokens under a mask, with a buffer, a constant, and a layer for training only."""

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
    """Indices for one axis, for adjacent axes, for other axes, for all; some count from the end, some are broadcast."""

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
@pytest.mark.parametrize("how", [{"size": (7, 3)}, {"scale_factor": (1.5, 2)}, {"scale_factor": 1.7}])
def test_pictures_made_larger_by_their_nearest_elements(how: dict[str, Any]) -> None:
    class Larger(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.interpolate(x, mode="nearest", **how)

    x = torch.arange(60.0).reshape(1, 3, 4, 5)
    compiled = tvm_backend.compile(torch.export.export(Larger(), (x,)), target="ptx", name="larger")
    np.testing.assert_array_equal(compiled.run_local(x.numpy()), Larger()(x).numpy(), strict=True)


HALF = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 5)
)  # fmt: skip


class Given(NamedTuple):
    x: Any
    y: Any
    k: Any


MEANINGS: dict[str, Any] = {
    "numbers of other types": lambda i: (
        i.k * 0.5, i.k / 3, i.k + 1.5, i.k > 0.5, (i.x > 0) + 1, torch.where(i.x > 0, i.x, i.k)
    ),
    "alpha": lambda i: (torch.add(i.x, i.y, alpha=3), torch.sub(i.x, i.y, alpha=2), torch.rsub(i.x, 2, alpha=3)),
    "rounded quotients": lambda i: (
        i.k // -3, torch.div(i.k, -3, rounding_mode="trunc"), torch.fmod(i.k, -3), i.k % -3
    ),
    "not a number": lambda i: (torch.isfinite(i.x.log()), (j := i.x.log()) == j, j != j),
    "exponential units": lambda i: (
        torch.nn.functional.elu(i.x, 0.5), torch.nn.functional.selu(i.x), torch.nn.functional.celu(i.x, 0.7)
    ),
    "indices": lambda i: (i.x[i.k], i.x[:, i.k, i.k], i.x[i.k, :, i.k], i.x[..., i.k]),
    "neighbours": lambda i: torch.nn.functional.interpolate(i.x[None], size=(8, 7), mode="nearest"),
    "unequal windows": lambda i: torch.nn.functional.adaptive_avg_pool2d(i.x[None], (3, 4)),
    "samples": lambda i: torch.nn.functional.grid_sample(i.x[None], i.y[None, ..., :2], align_corners=False),
    "extremes": lambda i: (i.x.amax(), i.x.amin(1), torch.logsumexp(i.x, 1), *torch.var_mean(i.x, 1), i.x.prod(1)),
    "sums of truth values": lambda i: ((i.x > 0).cumsum(1), i.k.int().prod()),
    "a small product": lambda i: torch.nn.functional.cosine_similarity(i.x[0, :3, :4], i.y[0, :3, :4]),
    "sums of products": lambda i: (torch.addmm(i.x[0], i.x[1], i.y[1], beta=0.5, alpha=2), i.x.double() @ i.y.double()),
}  # fmt: skip
"""Operators that TVM's own conversions convert differently or not at all."""


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize("what", MEANINGS)
def test_operators_have_the_meaning_of_torch(what: str) -> None:
    class Meaning(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, y: Any, k: Any) -> Any:
            return MEANINGS[what](Given(x, y, k))

    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn((2, 5, 5, 5), generator=generator)
    given = x, y, torch.tensor([1, -2, 0, 3, -5])
    compiled = tvm_backend.compile(Meaning().eval(), given, target="compute_80")
    found, expected = compiled.run_local(*(each.numpy() for each in given)), Meaning()(*given)
    pairs = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
    for one, other in pairs:
        assert one.dtype == other.numpy().dtype
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("softgpu")
def test_half_precision() -> None:
    network = HALF.half().eval()
    x = torch.randn((2, 3, 6, 6), generator=torch.Generator().manual_seed(0)).half()
    found = tvm_backend.compile(network, x, target="compute_80").run_local(x.numpy())
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, network(x).detach().numpy(), rtol=1e-2, atol=2e-3)


def test_conversions_that_would_change_results_are_all_refused() -> None:
    class Lossy(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            pooled, indices = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
            return torch.nn.functional.avg_pool2d(x, 2, divisor_override=3) + pooled, indices

    with pytest.raises(
        UnsupportedOperators, match=r"divisor_override[\s\S]*int64\[1, 2, 2, 2\]|int64[\s\S]*divisor"
    ) as caught:
        imported(Lossy(), torch.ones(1, 2, 4, 4), None, "lossy")
    assert len(caught.value.operators) == 2


def test_names_and_shapes() -> None:
    made = imported(Network().eval(), inputs(2), None, "network")
    assert [entry.batch_size for entry in made.functions] == [2]
    assert {"embedding.weight", "norm.running_var", "shift"} <= set(made.constants)


def test_a_model_in_training_mode_is_refused() -> None:
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
