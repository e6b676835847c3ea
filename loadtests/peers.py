"""Other gateways, to stand beside Graceway: each in a virtual environment of its own under build/, none a dependency.

They are set up as their own documentation advises where a replica's failure should be noticed soon; the report shows
these settings. One that can't be installed or does not come up raises PeerUnavailableError, and is left out.
"""

import asyncio
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from loadtests.processes import ROOT, ServerProcess, free_port

FOLDER = ROOT / "build"
INSTALL_WITHIN_S = 300.0
COMES_UP_WITHIN_S = 90.0
_QUICK_DETECTION = (
    *("--health-check-interval-secs", "10", "--health-failure-threshold", "2"),
    *("--health-check-timeout-secs", "3", "--health-success-threshold", "1"),
)
_LITELLM_HEAD = "model_list:\n"
_LITELLM_MODEL = """\
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_base: "{url}/v1", api_key: none}}
"""
_LITELLM_SETTINGS = """\
router_settings:
  routing_strategy: simple-shuffle
  num_retries: 3
  allowed_fails: 3
  cooldown_time: 30
litellm_settings:
  request_timeout: 600
  set_verbose: false
  json_logs: true
"""


class PeerUnavailableError(RuntimeError):
    """A gateway that can't be had here; why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One of them. `command` takes the folder of its programs, its port, the replicas and a folder for its config."""

    name: str
    package: str
    command: Callable[[Path, int, Sequence[str], Path], list[str]]
    config: Callable[[str, Sequence[str]], str] = lambda model, urls: ""
    """The file that it reads, where it reads one, for a model and its replicas."""
    env: dict[str, str] = field(default_factory=dict)
    ready_path: str = "/v1/models"
    is_slow: bool = False
    """Whether one round of the overhead's is all that there is time for, and dozens of streams are too many."""

    def described(self) -> str:
        """How it is set up, for the report."""
        command = self.command(Path("bin"), 8000, ("URL", "URL"), Path("."))
        env = [f"{name}={value}" for name, value in self.env.items()]
        return (
            " \\\n  ".join([self.package, " ".join([*env, *command])])
            + "\n\n"
            + self.config("MODEL", ("URL", "URL"))
        )


def _vllm_router(programs: Path, port: int, replicas: Sequence[str], _: Path) -> list[str]:
    return [
        str(programs / "vllm-router"),
        *("--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"),
        *("--prometheus-port", str(free_port()), "--log-level", "error", *_QUICK_DETECTION),
        *("--worker-urls", *replicas),
    ]


def _sglang_router(programs: Path, port: int, replicas: Sequence[str], _: Path) -> list[str]:
    return [
        *(str(programs / "python"), "-m", "sglang_router.launch_router"),
        *("--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"),
        *("--prometheus-port", str(free_port()), "--log-level", "error", *_QUICK_DETECTION),
        *("--worker-urls", *replicas),
    ]


def _litellm(programs: Path, port: int, _: Sequence[str], folder: Path) -> list[str]:
    config = str(folder / "litellm.yaml")
    return [
        *(str(programs / "litellm"), "--config", config),
        *("--host", "127.0.0.1", "--port", str(port), "--num_workers", "1", "--telemetry", "False"),
    ]


def _litellm_config(model: str, replicas: Sequence[str]) -> str:
    models = (_LITELLM_MODEL.format(model=model, url=url) for url in replicas)
    return _LITELLM_HEAD + "".join(models) + _LITELLM_SETTINGS


PEERS = {
    peer.name: peer
    for peer in (
        Peer("vllm-router", "vllm-router==0.1.17", _vllm_router),
        Peer("sglang-router", "sglang-router==0.3.2", _sglang_router),
        Peer(
            "litellm",
            "litellm[proxy]==1.108.7",
            _litellm,
            _litellm_config,
            {
                "LITELLM_MODE": "PRODUCTION",
                "LITELLM_LOG": "ERROR",
                # It wants a master key, which the clients of all fronts would have to send.
                "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
            },
            "/health/liveliness",
            is_slow=True,
        ),
    )
}


class PeerProcess(ServerProcess):
    """One of them before these replicas. None prints when it serves, so it is asked until it does."""

    ready_within_s = COMES_UP_WITHIN_S

    def __init__(self, peer: Peer, model: str, replicas: Sequence[str], folder: Path) -> None:
        self._peer, self._port = peer, free_port()
        if config := peer.config(model, replicas):
            (folder / f"{peer.name}.yaml").write_text(config)
        command = peer.command(_venv(peer) / "bin", self._port, replicas, folder)
        super().__init__(*command, env=peer.env)

    async def start(self) -> None:
        await installed(self._peer)
        await super().start()

    async def _until_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{self._port}"
        self._drain = asyncio.create_task(self._keep_output(self._process.stdout))
        async with aiohttp.ClientSession() as http:
            while not await _answers(http, self.url + self._peer.ready_path):
                if not self.is_running:
                    said = "".join(self.output)[-2000:]
                    raise PeerUnavailableError(f"{self._peer.name} ended before it was ready:\n{said}")
                await asyncio.sleep(0.1)


async def _answers(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


def _venv(peer: Peer) -> Path:
    return FOLDER / peer.name


async def installed(peer: Peer) -> None:
    """Puts it where this module looks for it, once. Raises PeerUnavailableError."""
    marker = _venv(peer) / "installed"
    if marker.exists() and marker.read_text() == peer.package:
        return
    shutil.rmtree(_venv(peer), ignore_errors=True)
    sys.stderr.write(f"installing {peer.package} into {_venv(peer)}\n")
    uv = Path(sys.executable).parent / "uv"
    python = str(_venv(peer) / "bin" / "python")
    await _run(peer, str(uv), "venv", "--quiet", "--python", sys.executable, str(_venv(peer)))
    await _run(peer, str(uv), "pip", "install", "--quiet", "--python", python, peer.package)
    marker.write_text(peer.package)


async def _run(peer: Peer, *command: str) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except FileNotFoundError as error:
        raise PeerUnavailableError(f"{peer.package} can't be installed: {error}") from error
    try:
        async with asyncio.timeout(INSTALL_WITHIN_S):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise PeerUnavailableError(f"{peer.package} is not installed after {INSTALL_WITHIN_S:g} s") from None
    if process.returncode:
        raise PeerUnavailableError(
            f"{peer.package} can't be installed: {said.decode(errors='replace')[-500:]}"
        )
