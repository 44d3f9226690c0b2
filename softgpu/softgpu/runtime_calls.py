"""The calls of cuda.core to NVIDIA's runtime library, redirected to the driver.

The runtime library works only with NVIDIA's driver: it checks that by private means. cuda.core calls it for two
functions that the driver has as well, `Device.sync` and `Device.pci_bus_id`, by name in a module of cuda.bindings.
"""

from __future__ import annotations


def answer_runtime_calls() -> None:
    """Replace these names in cuda.bindings by calls of the driver, which return the driver's errors."""
    from cuda.bindings import driver, runtime  # after the software driver is loaded

    def synchronize() -> tuple[runtime.cudaError_t]:
        (status,) = driver.cuCtxSynchronize()
        return (runtime.cudaError_t(int(status)),)

    def pci_bus_id(length: int, device: int) -> tuple[runtime.cudaError_t, bytes | None]:
        status, name = driver.cuDeviceGetPCIBusId(length, device)
        return runtime.cudaError_t(int(status)), name

    runtime.cudaDeviceSynchronize = synchronize
    runtime.cudaDeviceGetPCIBusId = pci_bus_id
