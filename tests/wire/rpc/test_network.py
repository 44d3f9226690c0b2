"""Client and server half against each other: every call gets its reply once, however the network behaves."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.wire.rpc.client_half import ClientHalf
from kaas.wire.rpc.credit import Credit
from kaas.wire.rpc.server_half import KeyOwner
from tests.wire.rpc.network import Network


@given(seed=st.integers(0, 1 << 32), programs=st.integers(1, 5), steps=st.integers(0, 3000))
def test_each_call_is_replied_to_once_and_nothing_runs_twice_under_one_key(
    seed: int, programs: int, steps: int
) -> None:
    network = Network(Random(seed), programs, checked=True)
    for _ in range(steps):
        network.step()
    assert network.settle() == (0, 0)
    assert network.twice == 0
    assert all(caller.requests.nbytes >= 0 for caller in network.callers.values())
    assert all((program.credit.requests, program.credit.nbytes) == (0, 0) for program in network.programs)


@given(st.lists(st.integers(0, 13), max_size=300), st.randoms(use_true_random=False))
def test_any_order_of_moves(moves: list[int], random: Random) -> None:
    """Chosen by Hypothesis, which shrinks them."""
    network = Network(random, 2, checked=True)
    for move in moves:
        if move == len(network.moves):
            network.restart()
        else:
            network.moves[move][0]()
    assert network.settle() == (0, 0)
    assert network.twice == 0


def test_all_credit_is_given_back_once_all_is_acknowledged() -> None:
    network = Network(Random(5), 4)
    for _ in range(20_000):
        network.step()
    network.settle()
    for _ in range(2):
        for program in network.programs:
            program.acknowledge()
            while program.pipe is not None and program.pipe.up:
                network.serve(program, program.pipe.up.popleft())
    assert not [wait for session in network.sessions.values() for wait in session.waits.values()]
    assert all((c.requests.count, c.requests.nbytes) == (0, 0) for c in network.callers.values())  # type: ignore[attr-defined]
    assert all((p.credit.requests, p.credit.nbytes, [*p.credit.waiting]) == (0, 0, []) for p in network.programs)


# --- the network notices mistakes


def found(network: Network, steps: int = 30_000) -> bool:
    for _ in range(steps):
        network.step()
    return network.settle() != (0, 0) or network.twice > 0


def test_a_client_that_does_not_send_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(Random(1))
    monkeypatch.setattr(ClientHalf, "renewed", lambda _: ({}, []))
    assert found(network)


def test_a_client_that_keeps_its_credit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Credit, "give", lambda *_: None)
    assert found(Network(Random(1)))


def test_a_server_that_forgets_keys_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyOwner, "known", lambda *_: None)
    assert found(Network(Random(1)))


def test_a_server_that_sends_nothing_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Network, "send", lambda *_: None)
    assert found(Network(Random(1)), 3000)
