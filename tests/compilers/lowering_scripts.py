"""Modules in TVM's scripting languages, for the tests of lowering."""

# This code is Python for the parser only: TVM gives it another meaning.
# mypy: ignore-errors
# ruff: noqa: N805, N812, SIM108

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T


@I.ir_module
class Cache:
    """A cache of keys that a step appends to, in place: once in a tensor of its own, once in the input itself."""

    @T.prim_func(private=True, s_tir=True)
    def append(
        cache: T.Buffer((T.int64(8), T.int64(4)), "float32"),
        new: T.Buffer((T.int64(4),), "float32"),
        at: T.Buffer((), "int64"),
    ):
        for i in range(T.int64(4)):
            with T.sblock("append"):
                vi = T.axis.spatial(T.int64(4), i)
                cache[at[()], vi] = new[vi]

    @R.function
    def own(cache: R.Tensor((8, 4), "float32"), new: R.Tensor((4,), "float32"), at: R.Tensor((), "int64")):
        cls = Cache
        with R.dataflow():
            more = R.multiply(cache, R.const(2.0, "float32"))
            updated = R.call_tir_inplace(
                cls.append, (more, new, at), inplace_indices=[0], out_ty=[R.Tensor((8, 4), "float32")]
            )
            R.output(updated)
        return updated

    @R.function
    def same(cache: R.Tensor((8, 4), "float32"), new: R.Tensor((4,), "float32"), at: R.Tensor((), "int64")):
        cls = Cache
        with R.dataflow():
            updated = R.call_tir_inplace(
                cls.append, (cache, new, at), inplace_indices=[0], out_ty=[R.Tensor((8, 4), "float32")]
            )
            R.output(updated)
        return updated


@I.ir_module
class Branch:
    @R.function
    def main(x: R.Tensor((4,), "float32"), choice: R.Tensor((), "bool")):
        y = R.call_pure_packed("a.library.of.its.own", x, ty_args=R.Tensor((4,), "float32"))
        z = R.add(y, y)
        if choice:
            w = R.exp(x)
        else:
            w = R.add(x, x)
        return (z, w)


@I.ir_module
class Several:
    """A loop, a condition and a workspace on the host, around kernels with scalars as arguments."""

    @T.prim_func(s_tir=True)
    def several(
        a: T.Buffer((T.int64(64),), "float32"), b: T.Buffer((T.int64(64),), "float32"), count: T.int64, scale: T.float32
    ):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        space = T.alloc_buffer((T.int64(128),), "float32")
        with T.attr(0, "hand_threaded", 0):
            for i in T.serial(T.int64(3)):
                if i != T.int64(1):
                    block = T.launch_thread("blockIdx.x", T.int64(2) * (i + T.int64(1)))
                    thread = T.launch_thread("threadIdx.y", T.int64(16))
                    space[block * T.int64(16) + thread] = a[block * T.int64(16) + thread] * scale + T.Cast(
                        "float32", i + count
                    )
        with T.attr(0, "hand_threaded", 0):
            thread = T.launch_thread("threadIdx.x", T.int64(64))
            b[thread] = b[thread] + space[thread]


@I.ir_module
class Many:
    """More launches than a kTask should have."""

    @T.prim_func(s_tir=True)
    def many(a: T.Buffer((T.int64(4),), "float32")):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        for _ in T.serial(T.int64(1000000)):
            with T.attr(0, "hand_threaded", 0):
                thread = T.launch_thread("threadIdx.x", T.int64(4))
                a[thread] = a[thread] + T.float32(1)


@I.ir_module
class Addresses:
    """Addresses that are used in other ways than in a load or a store."""

    @T.prim_func(s_tir=True)
    def addresses(
        a: T.Buffer((T.int64(4),), "int32"), b: T.Buffer((T.int64(4),), "int32"), c: T.Buffer((T.int64(4),), "int32")
    ):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        thread = T.launch_thread("threadIdx.x", T.int64(4))
        T.evaluate(T.call_extern("int32", "atomicAdd", T.address_of(a[thread]), b[thread]))
        T.evaluate(T.call_extern("int32", "look", c.data))


@I.ir_module
class OnTheHost:
    """Steps that no kTask can do, between kernels."""

    @T.prim_func(s_tir=True)
    def host(a: T.Buffer((T.int64(4),), "float32"), b: T.Buffer((T.int64(4),), "float32"), n: T.int32):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        T.evaluate(T.call_packed("some.library.gemm", a.data, b.data))
        with T.attr(0, "hand_threaded", 0):
            thread = T.launch_thread("threadIdx.x", T.int64(4))
            b[thread] = a[thread]
        T.evaluate(T.call_extern("int32", "write_a_file", n))
