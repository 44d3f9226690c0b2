"""A software GPU is as its `kaas.Device` describes it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kaas.config import Device
from kaas.errors import DeviceUnavailable
from kaas.executor.device import software
from tests.executor.conftest import KERNELS
from tests.timeouts import TIMEOUT_S

DESCRIBED = """
import sys
import numpy as np
import kaas
import softgpu
from kaas.errors import DeviceLost, OutOfDeviceMemory
from kaas.executor.device import software
from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor, RunRequest

described = kaas.Device("software", 1 << 20, **eval(sys.argv[2]))
software.load(described)
software.load(described)
device = open_device("software")
executor = Executor(device)
library = kaas.Library.from_file(sys.argv[1])
with device.context:
    stream, fresh = device.stream(), np.zeros(1 << 18, np.uint8)
    stream.copy_out(fresh, device.allocate(len(fresh)), len(fresh))
    stream.synchronize()
print("poison" if (fresh == 255).all() else "whatever")
b = kaas.Buffer("b", 64, "int32")
n = 256 if described.memcheck else 64  # an overrun, which without memcheck would harm this process
fill = kaas.KTask([kaas.Kernel(library, "fill", 4, 64, [kaas.Out(b), kaas.i32(7), kaas.i32(n)])], [b])
for _ in range(2):
    try:
        result = executor.run(RunRequest(fill, {}, {}))
        print("ran", "slowly" if result.stats.device_s >= 0.05 else "")
    except DeviceLost as error:
        print(error.code_name)
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("description", "printed"),
    [
        ("{}", ["whatever", "ran ", "ran "]),
        ("dict(model=softgpu.Model(kernels={'fill': softgpu.Takes(0.05)}))", ["whatever", "ran slowly", "ran slowly"]),
        ("dict(faults=[softgpu.Fault('ecc', at=2)])", ["whatever", "ran ", "CUDA_ERROR_ECC_UNCORRECTABLE"]),
        ("dict(strict=3)", ["poison", "ran ", "ran "]),
        ("dict(memcheck=True)", ["whatever", *["CUDA_ERROR_ILLEGAL_ADDRESS"] * 2]),
    ],
)
def test_descriptions(description: str, printed: list[str]) -> None:
    command = [sys.executable, "-c", DESCRIBED, str(KERNELS / "simple.ptx"), description]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout.split("\n")[:-1]) == (0, printed), done.stderr


PARTED = """
import kaas
import softgpu
from kaas.executor.device import software

model = softgpu.Model(copy_bytes_per_s=1e9, sms=8)
software.load(kaas.Device("software", 1 << 20, model, sms=132, blocks_per_sm=4), count=2)
from cuda.core import Device, SMResourceOptions

device = Device(1)
device.set_current()
(part,), rest = device.resources.sm.split(SMResourceOptions(count=32))
print(device.properties.multiprocessor_count, part.sm_count, rest.sm_count)
"""


@pytest.mark.processes
def test_the_multiprocessors_of_a_description_replace_those_of_its_model() -> None:
    done = subprocess.run([sys.executable, "-c", PARTED], capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    assert done.stdout.split() == ["132", "32", "100"]


@pytest.mark.usefixtures("softgpu")
def test_devices_that_are_there_are_not_redescribed() -> None:
    software.load(Device("software", 7 << 20))
    with pytest.raises(DeviceUnavailable):
        software.load(Device("software", 7 << 20, memcheck=True))
