"""The tables of what GPUs can be cut into."""

import pytest

from replicas.mig.geometry import GEOMETRIES, GIB, UnknownProfile, geometry_of
from replicas.mig.layout import multisets

H200 = GEOMETRIES["H200-141GB"]


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("h200", "H200-141GB"),
        ("NVIDIA H200", "H200-141GB"),
        ("NVIDIA H200 NVL", "H200-141GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("a100-80gb", "A100-80GB"),
        ("NVIDIA B200", "B200-180GB"),
    ],
)
def test_finds_a_kind_by_any_of_its_names(name: str, gpu: str) -> None:
    assert geometry_of(name).gpu == gpu


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NVIDIA L40S", "no MIG table for NVIDIA L40S"),
        ("NVIDIA GH200 144G HBM3e", "no MIG table"),
        ("NVIDIA H100 NVL", "no MIG table"),
        ("NVIDIA H100 96GB", "no MIG table"),
        ("A100", "may be any of A100-40GB, A100-80GB"),
    ],
)
def test_refuses_what_it_does_not_know_rather_than_guess(name: str, said: str) -> None:
    with pytest.raises(UnknownProfile, match=said):
        geometry_of(name)


@pytest.mark.parametrize(
    ("gpu", "counts"),
    [
        # "Number of Instances Available", MIG User Guide.
        ("A100-40GB", {"1g.5gb": 7, "1g.5gb+me": 1, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1, "7g.40gb": 1}),
        ("A100-80GB", {"1g.10gb": 7, "1g.10gb+me": 1, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1}),
        ("H100-80GB", {"1g.10gb": 7, "1g.10gb+me": 1, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1}),
        ("H200-141GB", {"1g.18gb": 7, "1g.18gb+me": 1, "1g.35gb": 4, "2g.35gb": 3, "3g.71gb": 2, "4g.71gb": 1, "7g.141gb": 1}),
        ("B200-180GB", {"1g.23gb": 7, "1g.23gb+me": 1, "1g.45gb": 4, "2g.45gb": 3, "3g.90gb": 2, "4g.90gb": 1, "7g.180gb": 1}),
    ],
)  # fmt: skip
def test_counts_of_instances_are_nvidias(gpu: str, counts: dict[str, int]) -> None:
    assert {name: p.max_instances for name, p in GEOMETRIES[gpu].profiles.items()} == counts


def test_starts_and_sizes_are_what_the_driver_lists() -> None:
    # `nvidia-smi mig -lgipp`: {starts}:size
    listed = {name: (p.starts, p.memory_slices) for name, p in H200.profiles.items()}
    assert listed == {
        "1g.18gb": ((0, 1, 2, 3, 4, 5, 6), 1),
        "1g.18gb+me": ((0, 1, 2, 3, 4, 5, 6), 1),
        "1g.35gb": ((0, 2, 4, 6), 2),
        "2g.35gb": ((0, 2, 4), 2),
        "3g.71gb": ((0, 4), 4),
        "4g.71gb": ((0,), 4),
        "7g.141gb": ((0,), 8),
    }


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=lambda g: g.gpu)
def test_slices_never_hold_more_than_the_gpu(geometry) -> None:  # type: ignore[no-untyped-def]
    whole = geometry.compute_profiles[-1]
    for names in multisets(geometry):
        chosen = [geometry.profile(name) for name in names]
        assert sum(p.memory_bytes for p in chosen) <= whole.memory_bytes + GIB // 4
        assert sum(p.sms for p in chosen) <= geometry.sms


def test_an_unknown_profile_is_told_which_there_are() -> None:
    with pytest.raises(UnknownProfile, match=r"H200-141GB has no profile 1g\.10gb; it has 1g\.18gb, "):
        H200.profile("1g.10gb")
