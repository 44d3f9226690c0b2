"""A library of kernels from TVM's CUDA source."""

from __future__ import annotations

from kaas import Library
from tvm_backend.targets import Target

INTEGERS = """
namespace cuda { namespace std {
using int8_t = signed char; using int16_t = short; using int32_t = int; using int64_t = long long;
using uint8_t = unsigned char; using uint16_t = unsigned short; using uint32_t = unsigned int;
using uint64_t = unsigned long long;
} }
"""

TRAITS = """
namespace cuda { namespace std {
template <bool V> struct truth { static constexpr bool value = V; };
template <class A, class B> struct is_same : truth<false> {};
template <class A> struct is_same<A, A> : truth<true> {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <class A> struct is_floating_point : truth<is_same_v<A, float> || is_same_v<A, double>> {};
template <class A> struct is_integral : truth<
    is_same_v<A, bool> || is_same_v<A, char> || is_same_v<A, signed char> || is_same_v<A, unsigned char> ||
    is_same_v<A, short> || is_same_v<A, unsigned short> || is_same_v<A, int> || is_same_v<A, unsigned> ||
    is_same_v<A, long> || is_same_v<A, unsigned long> || is_same_v<A, long long> ||
    is_same_v<A, unsigned long long>> {};
template <class A, bool = is_integral<A>::value || is_floating_point<A>::value> struct is_signed : truth<false> {};
template <class A> struct is_signed<A, true> : truth<(A(-1) < A(0))> {};
template <class A> struct is_unsigned : truth<is_integral<A>::value && !is_signed<A>::value> {};
template <bool V, class A = void> struct enable_if {};
template <class A> struct enable_if<true, A> { using type = A; };
template <bool V, class A, class B> struct conditional { using type = A; };
template <class A, class B> struct conditional<false, A, B> { using type = B; };
} }
"""

HEADERS = {"cuda/std/cstdint": INTEGERS, "cuda/std/type_traits": TRAITS}
"""The parts of two headers that TVM's sources use: NVIDIA's full headers take seconds to read."""


def library(source: str, target: Target) -> Library:
    """Compile TVM's CUDA source for a target.

    Raises:
        CompileFailed, InvalidTarget, MissingPackage: see `kaas.Library.from_cuda`.
    """
    return Library.from_cuda(source, target.name, headers=HEADERS, name="tvm.cu")
