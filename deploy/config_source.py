"""Where a gateway's config comes from, and how it is read anew: from a file of its own, or from one that a parent keeps.

Where several processes serve one file, only the parent reads it for all of them: it leaves a copy of the last good one
and a note of how that stands to the file. Who is asked for a reload has the parent do it for all.
"""

import asyncio
import json
import logging
import os
import signal
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import time
from typing import Protocol

from deploy.config import Config, ConfigError, load_config, to_gateway_spec
from deploy.config_restart import Runner, needs_restart
from gateway.app import Gateway
from gateway.config_standing import ConfigStanding, NewConfig, refused

log = logging.getLogger("graceway.deploy")

COPY, FIRST, NOTE = "config.yaml", "first.yaml", "standing.json"
"""In a parent's folder: the config in force, the one that it was started with, how the former stands to its file."""


class Source(Protocol):
    """Of one gateway's config."""

    def read(self) -> NewConfig:
        """What the file says now, for a reload that somebody asked this gateway for; raises ConfigError."""
        ...

    async def hear(self, gateway: Gateway) -> None:
        """SIGHUP: has the gateway take the config over."""
        ...


class OwnFile:
    """The file of a process that runs with `running`."""

    def __init__(self, path: Path, running: Config) -> None:
        self._path, self._running = path, running

    def read(self) -> NewConfig:
        return _compared(self._running, load_config(self._path), "serve")

    async def hear(self, gateway: Gateway) -> None:
        if (wrong := await gateway.reload_from_file()) is not None:
            log.error("the config: %s", wrong)
            return
        _warn(gateway.config.needs_restart)
        log.info("%s is in force", self._path)


class ParentsFile:
    """The file that `parent` reads for several processes; what came of that is in `home`."""

    def __init__(self, path: Path, home: Path, parent: int, runner: Runner = "serve") -> None:
        self._path, self._home, self._parent, self._runner = path, home, parent, runner

    def read(self) -> NewConfig:
        with suppress(ProcessLookupError):
            os.kill(self._parent, signal.SIGHUP)
        return _compared(load_config(self._home / FIRST), load_config(self._path), self._runner)

    async def hear(self, gateway: Gateway) -> None:
        config, standing = await asyncio.to_thread(self.kept)
        await gateway.follow(to_gateway_spec(config), standing)

    def kept(self) -> tuple[Config, ConfigStanding]:
        """The config in force, and how it stands to the file."""
        return load_config(self._home / COPY), read_note((self._home / NOTE).read_text())


class KeptFile:
    """A parent's side: what the file last said that was good, left in a folder for those that the parent starts."""

    def __init__(self, path: Path, runner: Runner) -> None:
        self._path, self._runner = path, runner
        self._running = load_config(path)
        self._first = self._text = path.read_text(encoding="utf-8")
        self._home: Path | None = None
        self.standing = ConfigStanding(time())

    def lie_in(self, home: Path) -> None:
        """From now on."""
        self._home = home
        _put(home / FIRST, self._first)
        self._leave(home)

    def take(self) -> ConfigStanding:
        """Reads the file anew. A bad one is noted, and the one before stays."""
        try:
            new, text = load_config(self._path), self._path.read_text(encoding="utf-8")
        except (ConfigError, OSError) as error:
            log.error("the config is refused, the one before stays in force:\n%s", error)
            self.standing = refused(self.standing, str(error), time())
        else:
            self._text = text
            self.standing = ConfigStanding(time(), needs_restart(self._running, new, self._runner))
            _warn(self.standing.needs_restart)
        if self._home is not None:
            self._leave(self._home)
        return self.standing

    def _leave(self, home: Path) -> None:
        _put(home / COPY, self._text)
        _put(home / NOTE, to_note(self.standing))


def _put(path: Path, text: str) -> None:
    """Whole or not at all, for whoever reads it meanwhile."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def _warn(waiting: tuple[str, ...]) -> None:
    if waiting:
        log.warning("a restart is needed for the change of: %s", ", ".join(waiting))


def _compared(running: Config, new: Config, runner: Runner) -> NewConfig:
    return NewConfig(to_gateway_spec(new), needs_restart(running, new, runner))


def to_note(standing: ConfigStanding) -> str:
    return json.dumps(asdict(standing))


def read_note(text: str) -> ConfigStanding:
    told = json.loads(text)
    return ConfigStanding(**{**told, "needs_restart": tuple(told["needs_restart"])})
