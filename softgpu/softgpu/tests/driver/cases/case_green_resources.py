"""A device's multiprocessors as resources: their splits, and what a green context gets."""

from __future__ import annotations

from typing import Any

import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import NO_STREAM, Error, fails, ok
from softgpu.tests.driver.partitions import SM, SMS, green_of, partitions, whole

pytestmark = pytest.mark.usefixtures("ctx", "with_sms")

TYPES = driver.CUdevResourceType
INVALID_VALUE, INVALID_TYPE = Error.CUDA_ERROR_INVALID_VALUE, Error.CUDA_ERROR_INVALID_RESOURCE_TYPE
INVALID_CONFIGURATION = Error.CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION
ATTRIBUTES = driver.CUdevice_attribute


def split(counts: list[int], of: Any, **fields: int) -> Any:
    """Splits by groups of their own sizes; returns the status first."""
    params = [driver.CU_DEV_SM_RESOURCE_GROUP_PARAMS() for _ in counts]
    for each, count in zip(params, counts, strict=True):
        each.smCount = count
        for name, value in fields.items():
            setattr(each, name, value)
    return driver.cuDevSmResourceSplit(len(counts), of, 0, params)


def test_a_device_says_its_multiprocessors() -> None:
    attribute = ATTRIBUTES.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    sm = whole().sm
    assert ok(driver.cuDeviceGetAttribute(attribute, 0)) == sm.smCount == SMS
    assert (sm.minSmPartitionSize, sm.smCoscheduledAlignment, sm.flags) == (4, 2, 0)  # compute capability 8.0
    assert ok(driver.cuCtxGetDevResource(ok(driver.cuCtxGetCurrent()), SM)).sm.smCount == SMS
    assert ok(driver.cuStreamGetDevResource(NO_STREAM, SM)).sm.smCount == SMS
    queue = ok(driver.cuDeviceGetDevResource(0, TYPES.CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG)).wqConfig
    assert (int(queue.device), queue.wqConcurrencyLimit) == (0, 8)


@pytest.mark.parametrize(
    ("least", "wanted", "flags", "size", "made", "left"),
    [
        (0, 3, 0, 4, 3, 120),
        (1, 3, 0, 4, 3, 120),
        (1, 3, 1, 2, 3, 126),
        (7, 3, 0, 8, 3, 108),
        (32, 9, 0, 32, 4, 4),
        (66, 2, 0, 66, 2, 0),
        (132, 1, 0, 132, 1, 0),
    ],
)
def test_a_split_by_count(least: int, wanted: int, flags: int, size: int, made: int, left: int) -> None:
    """Each partition is rounded up; there are as many as fit; the rest is a resource, or none."""
    groups, number, rest = ok(driver.cuDevSmResourceSplitByCount(wanted, whole(), flags, least))
    assert [group.sm.smCount for group in groups][:made] == [size] * made
    assert number == made
    assert rest.type == (SM if left else TYPES.CU_DEV_RESOURCE_TYPE_INVALID)
    assert not left or rest.sm.smCount == left


def test_a_split_can_be_asked_for_its_number() -> None:
    _, number, _ = ok(driver.cuDevSmResourceSplitByCount(0, whole(), 0, 30))
    assert number == 4


def test_a_split_into_groups() -> None:
    groups, rest = ok(split([8, 24, 60], whole()))
    assert [group.sm.smCount for group in groups] == [8, 24, 60]
    assert rest.sm.smCount == 40
    groups, rest = ok(split([0], whole()))
    assert (groups[0].sm.smCount, rest.type) == (SMS, TYPES.CU_DEV_RESOURCE_TYPE_INVALID)
    (_, other), _ = ok(split([100, 0], whole(), flags=1))
    assert other.sm.smCount == 32


def test_partitions_are_split_again_once_they_are_in_a_green_context() -> None:
    (partition, _), rest = partitions(32, 2)
    fails(INVALID_CONFIGURATION, driver.cuDevSmResourceSplitByCount, 1, partition, 0, 8)
    assert split([8], partition)[0] == INVALID_CONFIGURATION
    assert [group.sm.smCount for group in partitions(8, 2, rest)[0]] == [8, 8]
    green = green_of(partition)
    inner, left = partitions(8, 2, ok(driver.cuGreenCtxGetDevResource(green, SM)))
    assert ([each.sm.smCount for each in inner], left.sm.smCount) == ([8, 8], 16)
    assert ok(driver.cuGreenCtxGetDevResource(green_of(inner[1]), SM)).sm.smCount == 8


def test_splits_that_are_refused() -> None:
    device, none = whole(), driver.CUdevResource()
    fails(INVALID_VALUE, driver.cuDevSmResourceSplitByCount, 1, device, 0, SMS + 1)
    fails(INVALID_VALUE, driver.cuDevSmResourceSplitByCount, 1, device, 2, 8)  # of compute capability 9.0
    fails(INVALID_TYPE, driver.cuDevSmResourceSplitByCount, 1, none, 0, 8)
    (small, _), _ = ok(split([2, 4], device))
    inside = ok(driver.cuGreenCtxGetDevResource(green_of(small), SM))
    fails(INVALID_CONFIGURATION, driver.cuDevSmResourceSplitByCount, 1, inside, 0, 0)
    for counts, fields in (([7], {}), ([SMS + 2], {}), ([8], {"coscheduledSmCount": 8}), ([8], {"flags": 8}), ([], {})):
        assert split(counts, device, **fields)[0] == INVALID_VALUE
    assert split([100, 40], device)[0] == INVALID_CONFIGURATION
    assert split([SMS, 0], device)[0] == INVALID_CONFIGURATION
    fails(INVALID_TYPE, driver.cuDeviceGetDevResource, 0, TYPES.CU_DEV_RESOURCE_TYPE_INVALID)
    fails(Error.CUDA_ERROR_INVALID_DEVICE, driver.cuDeviceGetDevResource, 9, SM)
    fails(INVALID_TYPE, driver.cuStreamGetDevResource, NO_STREAM, TYPES.CU_DEV_RESOURCE_TYPE_WORKQUEUE)


def test_a_resource_that_a_program_made_up() -> None:
    made = driver.CUdevResource()
    made.type = SM
    made.sm.smCount = 8
    fails(INVALID_VALUE, driver.cuDevSmResourceSplitByCount, 1, made, 0, 4)
    fails(INVALID_VALUE, driver.cuDevResourceGenerateDesc, [made], 1)


def test_descriptors_join_partitions_of_one_split() -> None:
    groups, rest = partitions(16, 3)
    green = green_of(groups[0], rest)
    assert ok(driver.cuGreenCtxGetDevResource(green, SM)).sm.smCount == 16 + 84
    others, _ = partitions(16, 1)
    fails(INVALID_CONFIGURATION, driver.cuDevResourceGenerateDesc, [groups[0], others[0]], 2)
    fails(INVALID_CONFIGURATION, driver.cuDevResourceGenerateDesc, [groups[0], groups[0]], 2)
    fails(INVALID_VALUE, driver.cuDevResourceGenerateDesc, [], 0)
    fails(INVALID_TYPE, driver.cuDevResourceGenerateDesc, [driver.CUdevResource()], 1)
    queue = ok(driver.cuDeviceGetDevResource(1, TYPES.CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG))
    fails(INVALID_CONFIGURATION, driver.cuDevResourceGenerateDesc, [groups[0], queue], 2)


def test_a_green_context_without_a_partition_has_the_whole_device() -> None:
    kind = TYPES.CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG
    queue = ok(driver.cuDeviceGetDevResource(0, kind))
    queue.wqConfig.wqConcurrencyLimit = 3
    green = green_of(queue)
    assert ok(driver.cuGreenCtxGetDevResource(green, SM)).sm.smCount == SMS
    assert ok(driver.cuGreenCtxGetDevResource(green, kind)).wqConfig.wqConcurrencyLimit == 3
