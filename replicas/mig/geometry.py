"""What each kind of GPU can be cut into: profiles, their memory and compute, and where a slice may start.

Sources, per column:

- Names, fractions and counts: NVIDIA, "MIG User Guide", Supported MIG Profiles (tables for A100, H100, H200, B200).
- Starts and sizes, in eighths of the memory: `nvidia-smi mig -lgipp` in the same guide (A100) and in Red Hat's
  and NVIDIA's recordings of H100; the profile tables of NVIDIA/k8s-test-infra (`mock-nvml-config-*.mig.yaml`)
  give the same for H100 and B200. All kinds here share one table; that H200 has it too follows from its
  profiles' counts (7, 4, 3, 2, 1, 1), which only this table yields.
- Usable memory and SMs: `nvidia-smi mig -lgip` as recorded on each kind. H200: 16.0 and 32.5 GiB and SMs from
  that listing, 69.5 GiB from the 74,625,056,768 bytes that CUDA shows on a 3g.71gb. B200: SMs from
  NVIDIA/k8s-test-infra; its memory is not recorded anywhere we know, so it is the listing of H200 scaled to
  178 GiB, and `is_measured` says so.
- Bandwidth and dense BF16 rate of the whole GPU: NVIDIA's data sheets (SXM form).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GIB = 1024**3
MEMORY_SLICES = 8
COMPUTE_SLICES = 7


@dataclass(frozen=True, slots=True)
class Profile:
    """A size of slice. `shape` is its name without the memory, the same on all kinds of GPU: `1g`, `1g+mem`, `3g`."""

    name: str
    shape: str
    compute_slices: int
    memory_slices: int
    starts: tuple[int, ...]
    """Memory slices at which an instance may begin."""
    memory_bytes: int
    """What a process can use of it, before the driver's own context."""
    sms: int
    has_media_engines: bool = False

    @property
    def max_instances(self) -> int:
        return 1 if self.has_media_engines else len(self.starts)


@dataclass(frozen=True, slots=True)
class Geometry:
    """A kind of GPU."""

    gpu: str
    profiles: Mapping[str, Profile]
    """By name, smallest first."""
    bandwidth_bytes_per_s: float
    flops_per_s: float
    """Dense BF16, whole GPU with all its SMs."""
    sms: int
    is_measured: bool = True
    """Whether the profiles' memory was read from such a GPU."""

    def profile(self, name: str) -> Profile:
        """The profile of that name. Raises `UnknownProfile` with the names there are."""
        try:
            return self.profiles[name]
        except KeyError:
            raise UnknownProfile(
                f"{self.gpu} has no profile {name}; it has {', '.join(self.profiles)}"
            ) from None

    @property
    def compute_profiles(self) -> tuple[Profile, ...]:
        """The profiles that serve models: those without media engines, smallest first."""
        return tuple(p for p in self.profiles.values() if not p.has_media_engines)


class UnknownProfile(ValueError):  # noqa: N818 - names what was asked for
    """A profile, or a kind of GPU, that is not in the tables."""


# shape: (compute slices, memory slices, starts)
_RULES: Mapping[str, tuple[int, int, tuple[int, ...]]] = MappingProxyType(
    {
        "1g": (1, 1, (0, 1, 2, 3, 4, 5, 6)),
        "1g+me": (1, 1, (0, 1, 2, 3, 4, 5, 6)),
        "1g+mem": (1, 2, (0, 2, 4, 6)),
        "2g": (2, 2, (0, 2, 4)),
        "3g": (3, 4, (0, 4)),
        "4g": (4, 4, (0,)),
        "7g": (7, 8, (0,)),
    }
)


def _profiles(names: str, gib: tuple[float, ...], sms: tuple[int, ...]) -> Mapping[str, Profile]:
    """`gib` and `sms` go with the rules' shapes, without `1g+me`, which has what `1g` has."""
    sizes = dict(zip([s for s in _RULES if s != "1g+me"], zip(gib, sms, strict=True), strict=True))
    profiles = {}
    for name, (shape, (compute, memory, starts)) in zip(names.split(), _RULES.items(), strict=True):
        usable_gib, sm_count = sizes["1g" if shape == "1g+me" else shape]
        profiles[name] = Profile(
            name, shape, compute, memory, starts, int(usable_gib * GIB), sm_count, shape == "1g+me"
        )
    return MappingProxyType(profiles)


GEOMETRIES: Mapping[str, Geometry] = MappingProxyType(
    {
        "A100-40GB": Geometry(
            "A100-40GB",
            _profiles(
                "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
                (4.75, 9.75, 9.75, 19.62, 19.62, 39.5),
                (14, 14, 28, 42, 56, 98),
            ),
            bandwidth_bytes_per_s=1.555e12,
            flops_per_s=312e12,
            sms=108,
        ),
        "A100-80GB": Geometry(
            "A100-80GB",
            _profiles(
                "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
                (9.5, 19.5, 19.5, 39.25, 39.25, 79.0),
                (14, 14, 28, 42, 56, 98),
            ),
            bandwidth_bytes_per_s=2.039e12,
            flops_per_s=312e12,
            sms=108,
        ),
        "H100-80GB": Geometry(
            "H100-80GB",
            _profiles(
                "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
                (9.75, 19.62, 19.62, 39.5, 39.5, 79.25),
                (16, 26, 32, 60, 64, 132),
            ),
            bandwidth_bytes_per_s=3.35e12,
            flops_per_s=989e12,
            sms=132,
        ),
        "H200-141GB": Geometry(
            "H200-141GB",
            _profiles(
                "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
                (16.0, 32.5, 32.5, 69.5, 69.5, 140.0),
                (16, 26, 32, 60, 64, 132),
            ),
            bandwidth_bytes_per_s=4.8e12,
            flops_per_s=989e12,
            sms=132,
        ),
        "B200-180GB": Geometry(
            "B200-180GB",
            _profiles(
                "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
                (20.3, 41.3, 41.3, 88.3, 88.3, 178.0),
                (18, 18, 36, 54, 72, 126),
            ),
            bandwidth_bytes_per_s=8.0e12,
            flops_per_s=2250e12,
            sms=148,
            is_measured=False,
        ),
    }
)


def geometry_of(gpu: str) -> Geometry:
    """The geometry for `h200`, `H200-141GB`, or the name that NVML gives (`NVIDIA H200`, `NVIDIA A100-SXM4-40GB`).

    Raises `UnknownProfile` for a kind that is not in the tables, and for a name that fits two (`A100`).
    """
    words = set(gpu.upper().replace("_", "-").replace(" ", "-").split("-"))
    if words >= {"H100", "NVL"}:  # 94 GB, with profiles of its own
        words.discard("H100")
    sizes = {word for word in words if word.endswith("GB")}
    found = [
        key for key in GEOMETRIES if key.split("-")[0] in words and (not sizes or key.split("-")[1] in sizes)
    ]
    if not found:
        raise UnknownProfile(f"no MIG table for {gpu}; there is {', '.join(GEOMETRIES)}")
    if len(found) > 1:
        raise UnknownProfile(f"{gpu} may be any of {', '.join(found)}")
    return GEOMETRIES[found[0]]
