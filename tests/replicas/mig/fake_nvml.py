"""NVIDIA's management library as `pynvml` calls it: C functions that write through pointers and return a code.

What it answers are layouts as recorded with `nvidia-smi -L` and `mig -lgi`. The real `pynvml` stands in front of it.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

OK, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, GPU_IS_LOST, UNKNOWN = 0, 3, 4, 6, 15, 999


@dataclass
class RecordedSlice:
    name: str
    uuid: str
    instance_id: int
    start: int
    memory_mib: int
    sms: int
    compute_slices: int


@dataclass
class RecordedGpu:
    name: str
    uuid: str
    mig: bool | None
    """None: a kind that has no MIG."""
    slices: list[RecordedSlice | None] = field(default_factory=list)
    """None is a hole, as an instance leaves that was destroyed."""
    is_lost: bool = False


class FakeNvml:
    """The library's object. Handles are numbers: (GPU + 1) × 1000, plus a slice's index + 1."""

    def __init__(self, gpus: list[RecordedGpu], *, init: int = OK, may_read_instances: bool = True) -> None:
        self.gpus, self.init, self.may_read_instances = gpus, init, may_read_instances
        self.open = 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        try:
            method = object.__getattribute__(self, f"_{name}")
        except AttributeError:
            raise AttributeError(name) from None
        return lambda *arguments: method(*arguments)

    def _nvmlInitWithFlags(self, _flags: int) -> int:
        self.open += self.init == OK
        return self.init

    def _nvmlShutdown(self) -> int:
        self.open -= 1
        return OK

    def _nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return OK

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:
        return _hand_out(device, (index.value + 1) * 1000)

    def _nvmlDeviceGetUUID(self, device: Any, text: Any, _size: Any) -> int:
        return self._text(device, text, "uuid")

    def _nvmlDeviceGetName(self, device: Any, text: Any, _size: Any) -> int:
        return self._text(device, text, "name")

    def _nvmlDeviceGetMigMode(self, device: Any, mode: Any, pending: Any) -> int:
        gpu = self._gpu(device)
        if gpu.mig is None:
            return NOT_SUPPORTED
        mode._obj.value = pending._obj.value = int(gpu.mig)
        return OK

    def _nvmlDeviceGetMaxMigDeviceCount(self, _device: Any, count: Any) -> int:
        count._obj.value = 7
        return OK

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, index: Any, mig: Any) -> int:
        slices = self._gpu(device).slices
        if index.value >= len(slices) or slices[index.value] is None:
            return NOT_FOUND
        return _hand_out(mig, _number(device) + index.value + 1)

    def _nvmlDeviceGetAttributes_v2(self, mig: Any, attributes: Any) -> int:
        recorded = self._slice(mig)
        attributes._obj.memorySizeMB = recorded.memory_mib
        attributes._obj.multiprocessorCount = recorded.sms
        attributes._obj.gpuInstanceSliceCount = recorded.compute_slices
        return OK

    def _nvmlDeviceGetGpuInstanceId(self, mig: Any, instance_id: Any) -> int:
        instance_id._obj.value = self._slice(mig).instance_id
        return OK

    def _nvmlDeviceGetGpuInstanceById(self, device: Any, instance_id: int, instance: Any) -> int:
        if not self.may_read_instances:
            return NO_PERMISSION
        index = next(i for i, s in enumerate(self._gpu(device).slices) if s and s.instance_id == instance_id)
        return _hand_out(instance, _number(device) + index + 1)

    def _nvmlGpuInstanceGetInfo(self, instance: Any, info: Any) -> int:
        info._obj.placement.start = self._slice(instance).start
        return OK

    def _text(self, device: Any, text: Any, attribute: str) -> int:
        if self._gpu(device).is_lost:
            return GPU_IS_LOST
        owner = self._slice(device) if _number(device) % 1000 else self._gpu(device)
        text.value = getattr(owner, attribute).encode()
        return OK

    def _gpu(self, handle: Any) -> RecordedGpu:
        return self.gpus[_number(handle) // 1000 - 1]

    def _slice(self, handle: Any) -> RecordedSlice:
        found = self._gpu(handle).slices[_number(handle) % 1000 - 1]
        assert found is not None
        return found


def _number(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _hand_out(reference: Any, number: int) -> int:
    ctypes.c_void_p.from_address(ctypes.addressof(reference._obj)).value = number
    return OK
