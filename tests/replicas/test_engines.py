"""Command lines and environments of engines."""

import sys
from pathlib import Path

from replicas.engines import EngineSpec, command, environment

VLLM = EngineSpec("vllm", "org/model", "m", slots=8)


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_vllm_on_a_cpu() -> None:
    argv = command(VLLM, 1234)
    assert argv[:3] == [sys.executable, "-m", "replicas.vllm_server"]
    assert option(argv, "--port") == "1234"
    assert option(argv, "--host") == "127.0.0.1"
    assert option(argv, "--max-num-seqs") == "8"
    assert option(argv, "--served-model-name") == "m"
    assert int(option(argv, "--block-size")) % 32 == 0
    assert "--enforce-eager" in argv


def test_vllm_on_gpus() -> None:
    whole = command(EngineSpec("vllm", "org/model", "m", slots=8, gpu=2), 1)
    assert whole[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    assert option(whole, "--tensor-parallel-size") == "2"
    assert "--enforce-eager" not in whole
    assert "--max-model-len" not in whole
    half = command(EngineSpec("vllm", "org/model", "m", slots=8, gpu=0.5), 1)
    assert option(half, "--gpu-memory-utilization") == "0.450"


def test_extra_arguments_come_last_and_so_win() -> None:
    spec = EngineSpec("vllm", "m", "m", slots=8, extra_args=("--block-size", "64"))
    assert command(spec, 1)[-2:] == ["--block-size", "64"]


def test_a_local_model_is_loaded_offline(tmp_path: Path) -> None:
    local = EngineSpec("vllm", str(tmp_path), "m", slots=1)
    assert environment(local, {})["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in environment(VLLM, {})


def test_the_spec_s_environment_wins_over_ours_and_the_operator_s_stands() -> None:
    assert environment(VLLM, {}, cores=2)["OMP_NUM_THREADS"] == "1"
    assert environment(VLLM, {}, cores=16)["OMP_NUM_THREADS"] == "8"
    assert environment(VLLM, {"OMP_NUM_THREADS": "6", "HOME": "/h"})["OMP_NUM_THREADS"] == "6"
    spec = EngineSpec("vllm", "m", "m", slots=1, env={"OMP_NUM_THREADS": "3"})
    assert environment(spec, {"OMP_NUM_THREADS": "6"})["OMP_NUM_THREADS"] == "3"
    assert environment(VLLM, {"HOME": "/h"})["HOME"] == "/h"


def test_the_key_is_on_no_command_line_and_in_no_repr() -> None:
    spec = EngineSpec("vllm", "m", "m", slots=1, api_key="secret")
    assert "secret" not in " ".join(command(spec, 1)) + repr(spec)
    assert environment(spec, {})["VLLM_API_KEY"] == "secret"


def test_another_server_s_template_is_filled_in() -> None:
    spec = EngineSpec(
        "command",
        "path",
        "m",
        slots=2,
        argv=("serve", "--at={host}:{port}", "{model}", "{slots}", "{served_model}"),
    )
    assert command(spec, 7) == ["serve", "--at=127.0.0.1:7", "path", "2", "m"]


def test_llamacpp() -> None:
    argv = command(EngineSpec("llamacpp", "x.gguf", "small", slots=4, max_model_len=512), 7)
    assert argv[:3] == [sys.executable, "-m", "replicas.llamacpp_server"]
    assert (option(argv, "--slots"), option(argv, "--slot-tokens")) == ("4", "512")


def test_nothing_is_compiled_on_a_cpu_while_requests_wait() -> None:
    assert environment(EngineSpec("vllm", "m", "m", slots=1), {})["TORCHDYNAMO_DISABLE"] == "1"
    assert "TORCHDYNAMO_DISABLE" not in environment(EngineSpec("vllm", "m", "m", slots=1, gpu=1), {})
