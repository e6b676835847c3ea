"""Writes a Llama in a GGUF file as an ordinary model folder: safetensors in bfloat16, tokenizer, configuration.

Without torch and transformers, whose first import on a fresh machine takes longer than all of this.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType
from gguf.quants import dequantize
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

# A GGUF's names of a Llama's weights, and those of the model folder.
_TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3


@dataclass(frozen=True)
class Gguf:
    """The metadata of a GGUF file and its tensors, as plain values."""

    reader: GGUFReader

    def text(self, key: str) -> str:
        return str(self._field(key))

    def number(self, key: str) -> float:
        return float(str(self._field(key)))

    def whole(self, key: str) -> int:
        return int(self.number(key))

    def texts(self, key: str) -> list[str]:
        field = self.reader.fields[key]
        if field.types[-1] is not GGUFValueType.STRING:
            raise ValueError(f"{key} holds no strings")
        return [bytes(field.parts[i]).decode() for i in field.data]

    def whole_numbers(self, key: str) -> list[int]:
        field = self.reader.fields[key]
        return [int(field.parts[i][0]) for i in field.data]

    def _field(self, key: str) -> object:
        return self.reader.fields[key].contents()


def write_model_folder(source: Path, folder: Path) -> None:
    """Fills `folder`, which exists and is empty, from the GGUF file `source`."""
    gguf = Gguf(GGUFReader(source))
    _write_weights(gguf, folder / "model.safetensors")
    _build_tokenizer(gguf).save(str(folder / "tokenizer.json"))
    _write_json(folder / "config.json", _model_config(gguf))
    _write_json(folder / "generation_config.json", _generation_config(gguf))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(gguf))


def _write_weights(gguf: Gguf, path: Path) -> None:
    """A safetensors file: the header's length, the header, then the tensors one after the other."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    values: list[bytes] = []
    end = 0
    for name, tensor in _weights(gguf):
        values.append(to_bfloat16(tensor))
        start, end = end, end + len(values[-1])
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.writelines(values)


def _weights(gguf: Gguf) -> Iterator[tuple[str, NDArray[np.float32]]]:
    query_heads = gguf.whole("llama.attention.head_count")
    key_heads = gguf.whole("llama.attention.head_count_kv")
    for tensor in gguf.reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if ".attn_q." in tensor.name:
            values = unpermute(values, query_heads)
        elif ".attn_k." in tensor.name:
            values = unpermute(values, key_heads)
        yield folder_name(tensor.name), values


def folder_name(gguf_name: str) -> str:
    """The model folder's name for a GGUF tensor of a Llama."""
    if gguf_name in _TOP_LEVEL:
        return _TOP_LEVEL[gguf_name]
    _, block, part, kind = gguf_name.split(".")
    return f"model.layers.{block}.{_IN_BLOCK[part]}.{kind}"


def unpermute(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undoes llama.cpp's order of query and key rows: rotary pairs side by side → halves in a row."""
    half = values.shape[0] // heads // 2
    return values.reshape(heads, half, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def to_bfloat16(values: NDArray[np.float32]) -> bytes:
    """The upper halves of the floats, rounded to nearest even, as torch does it."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounding = 0x7FFF + ((bits >> 16) & 1)
    return ((bits + rounding) >> 16).astype(np.uint16).tobytes()


def _build_tokenizer(gguf: Gguf) -> Tokenizer:
    tokens = gguf.texts("tokenizer.ggml.tokens")
    kinds = gguf.whole_numbers("tokenizer.ggml.token_type")
    pairs = (merge.partition(" ") for merge in gguf.texts("tokenizer.ggml.merges"))
    merges = [(left, right) for left, _, right in pairs]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    return tokenizer


def _model_config(gguf: Gguf) -> dict[str, object]:
    names = [tensor.name for tensor in gguf.reader.tensors]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": gguf.whole("llama.embedding_length"),
        "intermediate_size": gguf.whole("llama.feed_forward_length"),
        "num_hidden_layers": gguf.whole("llama.block_count"),
        "num_attention_heads": gguf.whole("llama.attention.head_count"),
        "num_key_value_heads": gguf.whole("llama.attention.head_count_kv"),
        "max_position_embeddings": gguf.whole("llama.context_length"),
        "rms_norm_eps": round(gguf.number("llama.attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": gguf.number("llama.rope.freq_base"),
        "vocab_size": gguf.whole("llama.vocab_size"),
        "tie_word_embeddings": "output.weight" not in names,
        **_token_ids(gguf),
    }


def _generation_config(gguf: Gguf) -> dict[str, object]:
    return dict(_token_ids(gguf))


def _token_ids(gguf: Gguf) -> dict[str, int]:
    return {
        "bos_token_id": gguf.whole("tokenizer.ggml.bos_token_id"),
        "eos_token_id": gguf.whole("tokenizer.ggml.eos_token_id"),
        "pad_token_id": gguf.whole("tokenizer.ggml.padding_token_id"),
    }


def _tokenizer_config(gguf: Gguf) -> dict[str, object]:
    tokens = gguf.texts("tokenizer.ggml.tokens")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.whole("llama.context_length"),
        "chat_template": gguf.text("tokenizer.chat_template"),
        "unk_token": tokens[gguf.whole("tokenizer.ggml.unknown_token_id")],
        **{name.removesuffix("_id"): tokens[i] for name, i in _token_ids(gguf).items()},
    }


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
