"""Discovery through the real pynvml, over a fake of the driver's library with recorded layouts."""

from collections.abc import Callable

import pynvml
import pytest

from replicas.mig.discovery import NvmlUnavailable, discover, loss_of, ray_resources
from tests.replicas.mig.fake_nvml import UNKNOWN, FakeNvml, RecordedGpu, RecordedSlice


def h200(*, holes: bool = False) -> RecordedGpu:
    """3g + 4 × 1g, as the driver lists it."""
    slices: list[RecordedSlice | None] = [
        RecordedSlice("NVIDIA H200 MIG 3g.71gb", "MIG-3g", 2, 4, 71168, 60, 3),
        *(RecordedSlice("NVIDIA H200 MIG 1g.18gb", f"MIG-1g-{i}", 7 + i, i, 16384, 16, 1) for i in range(4)),
    ]
    if holes:
        slices[2] = None
    return RecordedGpu("NVIDIA H200", "GPU-aaa", mig=True, slices=slices)


A100 = RecordedGpu("NVIDIA A100-SXM4-40GB", "GPU-bbb", mig=False)
T4 = RecordedGpu("Tesla T4", "GPU-ccc", mig=None)

Install = Callable[..., FakeNvml]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Install:
    def install(*gpus: RecordedGpu, **options: object) -> FakeNvml:
        fake = FakeNvml(list(gpus), **options)  # type: ignore[arg-type]
        monkeypatch.setattr(pynvml, "nvmlLib", fake)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return fake

    return install


def test_reads_every_slice_with_its_place(driver: Install) -> None:
    fake = driver(h200(), A100, T4)
    gpus = discover()
    assert [(gpu.name, gpu.has_mig, len(gpu.slices)) for gpu in gpus] == [
        ("NVIDIA H200", True, 5),
        ("NVIDIA A100-SXM4-40GB", False, 0),
        ("Tesla T4", False, 0),
    ]
    first = gpus[0].slices[0]
    assert (first.uuid, first.profile, first.gpu) == ("MIG-3g", "3g.71gb", 0)
    assert (first.start, first.instance_id, first.sms, first.memory_bytes) == (4, 2, 60, 71168 * 1024**2)
    assert first.environment == {"CUDA_VISIBLE_DEVICES": "MIG-3g"}
    assert fake.open == 0


def test_ray_counts_slices_by_profile_and_whole_gpus(driver: Install) -> None:
    driver(h200(), h200(holes=True), A100, T4)
    assert ray_resources(discover()) == {"GPU": 2.0, "mig-1g.18gb": 7.0, "mig-3g.71gb": 2.0}


def test_holes_left_by_destroyed_instances_are_passed_over(driver: Install) -> None:
    driver(h200(holes=True))
    assert [s.uuid for s in discover()[0].slices] == ["MIG-3g", "MIG-1g-0", "MIG-1g-2", "MIG-1g-3"]


def test_a_slice_shared_by_compute_instances_keeps_its_full_name(driver: Install) -> None:
    shared = RecordedSlice("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", "MIG-c", 1, 0, 20096, 14, 3)
    driver(RecordedGpu("NVIDIA A100-SXM4-40GB", "GPU-d", True, [shared]))
    assert ray_resources(discover()) == {"GPU": 0.0, "mig-1c.3g.20gb": 1.0}


def test_an_old_driver_that_names_no_profile(driver: Install) -> None:
    unnamed = RecordedSlice("NVIDIA A100-SXM4-40GB", "MIG-e", 9, 0, 4864, 14, 1)
    driver(RecordedGpu("NVIDIA A100-SXM4-40GB", "GPU-e", True, [unnamed]))
    assert discover()[0].slices[0].profile == "1g.5gb"


def test_without_the_right_to_read_instances_only_the_place_is_missing(driver: Install) -> None:
    driver(h200(), may_read_instances=False)
    slices = discover()[0].slices
    assert [s.start for s in slices] == [None] * 5
    assert [s.instance_id for s in slices] == [2, 7, 8, 9, 10]


def test_a_lost_gpu_does_not_hide_the_others(driver: Install) -> None:
    lost = h200()
    lost.is_lost = True
    driver(lost, h200())
    gpus = discover()
    assert "lost" in gpus[0].fault.lower()
    assert gpus[0].slices == ()
    assert len(gpus[1].slices) == 5
    assert ray_resources(gpus)["GPU"] == 0.0


def test_no_driver_says_so(driver: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(init=UNKNOWN)
    with pytest.raises(NvmlUnavailable):
        discover()
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", _no_such_library)
    with pytest.raises(NvmlUnavailable, match=r"(?i)not found"):
        discover()


def _no_such_library(_name: str) -> None:
    raise OSError("libnvidia-ml.so.1: cannot open shared object file")


def test_the_loss_of_a_slice_is_a_fault_with_a_reason(driver: Install) -> None:
    fake = driver(h200())
    held = discover()[0].slices[2]
    assert loss_of(held, discover()) is None
    fake.gpus[0] = h200(holes=True)
    assert loss_of(held, discover()) == "1g.18gb MIG-1g-1 is no longer on GPU 0"
    fake.gpus[0].is_lost = True
    assert "lost" in (loss_of(held, discover()) or "").lower()
    fake.gpus.clear()
    assert loss_of(held, discover()) == "GPU 0 is gone, and 1g.18gb MIG-1g-1 with it"
