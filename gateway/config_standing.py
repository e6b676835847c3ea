"""How the config in force stands to its file: since when it is, what of a newer one waits for a restart, what was refused."""

import re
from dataclasses import dataclass, replace

from gateway.specs import GatewaySpec

_PLACE = re.compile(r"(?:[^\n]*/)?([^/:\n]+:\d+): ")


@dataclass(frozen=True, slots=True)
class ConfigStanding:
    """Times are unix seconds. What is refused is told by its places only: what is written there may be secret."""

    in_force_since: float
    needs_restart: tuple[str, ...] = ()
    """Keys, as in `server.port`, that are others in the file than those with which the process runs."""
    refused_at: float | None = None
    refused_because: str = ""
    """Where the file is wrong, as in `graceway.yaml:3, graceway.yaml:7`; empty where no line is."""

    @property
    def is_older_than_file(self) -> bool:
        return self.refused_at is not None


@dataclass(frozen=True, slots=True)
class NewConfig:
    """A config that was read anew, and what of it has to wait for a restart."""

    spec: GatewaySpec
    needs_restart: tuple[str, ...] = ()


def refused(before: ConfigStanding, wrong: str, at: float) -> ConfigStanding:
    """The same config stays in force, though the file has another one."""
    return replace(before, refused_at=at, refused_because=places_of(wrong))


def places_of(wrong: str) -> str:
    """Of what is wrong with a file, a line each, only where: no line of it need be fit for everybody's eyes."""
    found = [match.group(1) for line in wrong.splitlines() if (match := _PLACE.match(line))]
    return ", ".join(dict.fromkeys(found))
