"""Which GPUs and MIG slices this node has, read from the driver through NVML, and what Ray is told of them.

Owns the edge to `pynvml`: nothing else here knows it, and its errors stop here. Reading needs no privilege; only
where a slice starts does, and is None without.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

_MIG_NAME = re.compile(r"\bMIG (\S+)$")
_MIB = 1024**2


class NvmlUnavailable(Exception):  # noqa: N818 - a condition that callers plan for
    """No NVIDIA driver here, or it does not answer."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A MIG device: one unit of capacity."""

    uuid: str
    """What `CUDA_VISIBLE_DEVICES` takes."""
    profile: str
    """As the driver names it, such as `1g.18gb`; `1c.3g.71gb` where one instance is shared by several."""
    gpu: int
    memory_bytes: int
    sms: int
    instance_id: int
    start: int | None = None
    """The first memory slice; None where reading it is not allowed."""

    @property
    def in_words(self) -> str:
        return f"{self.profile} of GPU {self.gpu}"

    @property
    def environment(self) -> dict[str, str]:
        """For the engine that runs on it, which then sees this slice as its only GPU."""
        return {"CUDA_VISIBLE_DEVICES": self.uuid}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU with the slices it is cut into. One with MIG on and no slices can serve nothing."""

    index: int
    uuid: str
    name: str
    has_mig: bool
    slices: tuple[Slice, ...] = ()
    fault: str = ""
    """Why nothing can be read from it, such as a GPU that fell off the bus."""


def discover() -> tuple[Gpu, ...]:
    """The node's GPUs, in the driver's order. Raises `NvmlUnavailable`."""
    with _nvml() as nvml:
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise NvmlUnavailable(str(error)) from None
        return tuple(_gpu(nvml, index) for index in range(count))


def ray_resources(gpus: Sequence[Gpu]) -> dict[str, float]:
    """For `ray start --resources`: `mig-1g.18gb: 7`, and `GPU` for the GPUs that are whole.

    Ray's own detection counts a GPU that is cut up as one `GPU`, so `--num-gpus` must be told this number too.
    """
    counts = Counter(f"mig-{s.profile}" for gpu in gpus for s in gpu.slices)
    whole = sum(not gpu.has_mig and not gpu.fault for gpu in gpus)
    return {"GPU": float(whole), **{name: float(count) for name, count in sorted(counts.items())}}


def loss_of(held: Slice, gpus: Sequence[Gpu]) -> str | None:
    """Why a slice that a replica holds can't be used any more; None while it is there."""
    gpu = next((gpu for gpu in gpus if gpu.index == held.gpu), None)
    if gpu is None:
        return f"GPU {held.gpu} is gone, and {held.profile} {held.uuid} with it"
    if gpu.fault:
        return f"GPU {held.gpu}: {gpu.fault}"
    if all(s.uuid != held.uuid for s in gpu.slices):
        return f"{held.profile} {held.uuid} is no longer on GPU {held.gpu}"
    return None


@contextmanager
def _nvml() -> Iterator[Any]:
    try:
        import pynvml
    except ImportError as error:
        raise NvmlUnavailable(str(error)) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlUnavailable(str(error)) from None
    try:
        yield pynvml
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> Gpu:
    try:
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = nvml.nvmlDeviceGetUUID(device), nvml.nvmlDeviceGetName(device)
        has_mig = _has_mig(nvml, device)
        slices = tuple(_slices(nvml, device, index)) if has_mig else ()
    except nvml.NVMLError as error:
        return Gpu(index, "", "", has_mig=False, fault=str(error))
    return Gpu(index, uuid, name, has_mig, slices)


def _has_mig(nvml: Any, device: Any) -> bool:
    try:
        mode, _pending = nvml.nvmlDeviceGetMigMode(device)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return False
    return bool(mode == nvml.NVML_DEVICE_MIG_ENABLE)


def _slices(nvml: Any, device: Any, gpu: int) -> Iterator[Slice]:
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        # Indices have holes after an instance was destroyed.
        with suppress(nvml.NVMLError_NotFound):
            mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
            yield _slice(nvml, device, mig, gpu)


def _slice(nvml: Any, device: Any, mig: Any, gpu: int) -> Slice:
    attributes = nvml.nvmlDeviceGetAttributes_v2(mig)
    instance_id = nvml.nvmlDeviceGetGpuInstanceId(mig)
    return Slice(
        uuid=nvml.nvmlDeviceGetUUID(mig),
        profile=_profile(nvml.nvmlDeviceGetName(mig), attributes),
        gpu=gpu,
        memory_bytes=attributes.memorySizeMB * _MIB,
        sms=attributes.multiprocessorCount,
        instance_id=instance_id,
        start=_start(nvml, device, instance_id),
    )


def _profile(name: str, attributes: Any) -> str:
    """From the device's name; drivers before R470 give the GPU's alone, so then from what it has."""
    if (named := _MIG_NAME.search(name)) is not None:
        return named[1]
    return f"{attributes.gpuInstanceSliceCount}g.{round(attributes.memorySizeMB / 1024 + 0.25)}gb"


def _start(nvml: Any, device: Any, instance_id: int) -> int | None:
    try:
        instance = nvml.nvmlDeviceGetGpuInstanceById(device, instance_id)
        return int(nvml.nvmlGpuInstanceGetInfo(instance).placement.start)
    except nvml.NVMLError:
        return None
