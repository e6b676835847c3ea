"""The demonstration models: the arithmetic of the conversion, and that nothing is made twice or by halves."""

import json
from pathlib import Path

import numpy as np
import pytest

from replicas import demo_models
from replicas.gguf_folder import folder_name, to_bfloat16, unpermute, write_model_folder


def floats(raw: bytes) -> list[float]:
    upper = np.frombuffer(raw, np.uint16).astype(np.uint32) << 16
    return [float(value) for value in upper.view(np.float32)]


def test_bfloat16_rounds_to_nearest_even() -> None:
    exact = [0.0, -1.0, 1.5, 2.0**-126]
    assert floats(to_bfloat16(np.array(exact, np.float32))) == exact
    step = 2.0**-7
    between = np.array([1 + 0.49 * step, 1 + 0.51 * step, 1 + 0.5 * step, 1 + 1.5 * step], np.float32)
    assert floats(to_bfloat16(between)) == [1.0, 1 + step, 1.0, 1 + 2 * step]


def test_unpermute_undoes_llama_cpp_s_order() -> None:
    heads, size = 3, 8
    ours = np.arange(heads * size * 2, dtype=np.float32).reshape(heads * size, 2)
    theirs = ours.reshape(heads, 2, size // 2, 2).swapaxes(1, 2).reshape(ours.shape)
    assert not np.array_equal(theirs, ours)
    assert np.array_equal(unpermute(theirs, heads), ours)


@pytest.mark.parametrize(
    ("gguf", "folder"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
    ],
)
def test_names(gguf: str, folder: str) -> None:
    assert folder_name(gguf) == folder


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / demo_models.FOLDER_NAME).mkdir()
    (tmp_path / demo_models.GGUF_NAME).write_text("mine")
    demo_models.main(tmp_path, lambda line: None)
    assert (tmp_path / demo_models.GGUF_NAME).read_text() == "mine"
    assert list((tmp_path / demo_models.FOLDER_NAME).iterdir()) == []


def test_a_source_that_is_no_model_leaves_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises((ValueError, KeyError, IndexError)):
        demo_models._write_folder(broken, tmp_path / "model")
    assert list(tmp_path.iterdir()) == [broken]


@pytest.mark.real
def test_the_packaged_model_becomes_a_whole_folder(tmp_path: Path) -> None:
    write_model_folder(demo_models._packaged_gguf(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["num_hidden_layers"], config["tie_word_embeddings"]) == (30, True)
    raw = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert header["model.embed_tokens.weight"]["shape"] == [49152, 576]
    assert (
        max(t["data_offsets"][1] for n, t in header.items() if n != "__metadata__") == len(raw) - 8 - length
    )
