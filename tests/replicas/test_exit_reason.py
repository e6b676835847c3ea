"""Why engines end, from what they leave."""

import pytest

from replicas.exit_reason import classify

PORT = "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use"
CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
TRACE = """Traceback (most recent call last):
  File "x.py", line 3, in <module>
    main()
    ^^^^^^
RuntimeError: Engine core initialization failed. See root cause above.
"""


@pytest.mark.parametrize(
    ("code", "log", "kind", "says"),
    [
        (-9, "", "killed", "SIGKILL"),
        (-15, "", "killed", "SIGTERM"),
        (-11, "", "crashed", "SIGSEGV"),
        (-6, "GGML_ASSERT(n > 0) failed", "crashed", "GGML_ASSERT"),
        (-64, "", "killed", "SIGRTMAX"),
        (0, "", "ended", "without an error"),
        (1, PORT, "port_taken", "address already in use"),
        (1, CUDA + "\n" + TRACE, "oom", "CUDA out of memory"),
        (1, "MemoryError", "oom", "MemoryError"),
        (1, TRACE, "crashed", "Engine core initialization failed"),
        (1, "", "crashed", "exit status 1"),
        (2, "api_server.py: error: unrecognized arguments: --x", "bad_config", "--x"),
        (2, "usage: …", "bad_config", "exit status 2"),
        (1, "pydantic: 1 validation error for ModelConfig", "bad_config", "ModelConfig"),
        (1, "error: failed to load model 'x.gguf'", "bad_config", "x.gguf"),
        (127, "could not start /nowhere: [Errno 2] No such file or directory", "bad_config", "/nowhere"),
    ],
)
def test_kinds(code: int, log: str, kind: str, says: str) -> None:
    reason = classify(code, log)
    assert reason.kind == kind
    assert says in reason.text


def test_a_kill_while_the_kernel_was_killing_for_memory_is_oom() -> None:
    assert classify(-9, "", oom_kills=1).kind == "oom"
    assert classify(1, TRACE, oom_kills=1).kind == "oom"
    assert classify(0, "", oom_kills=1).kind == "ended"


@pytest.mark.parametrize("code", [0, 1, -9, -15])
def test_what_we_asked_for_is_no_fault(code: int) -> None:
    assert classify(code, TRACE, was_asked=True).kind == "stopped"


def test_quotes_are_short() -> None:
    assert len(classify(1, "Error: " + "x" * 100_000).text) < 300
