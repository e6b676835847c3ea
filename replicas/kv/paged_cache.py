"""vLLM's paged KV cache as this connector sees it: blocks are gathered into, and scattered from, one row of bytes each.

A row holds the block's layers one after the other, each as heads × tokens × channels, whatever strides the cache has.
On a CPU the copies are numpy's, which need no threads of their own; elsewhere they go over the device in one piece.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Rows = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Layer:
    tensor: Any
    """[blocks, …] of bytes: the last dimension is in bytes, too."""
    first: int
    size: int


class PagedCache:
    """The cache tensors of all layers, [blocks, heads, tokens, channels] each.

    Raises ValueError for caches that are not split into blocks in their first dimension.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], num_blocks: int) -> None:
        self._layers: list[_Layer] = []
        self._device = tensors[0].device
        self.dtype = str(tensors[0].dtype).removeprefix("torch.")
        """Of its elements, as torch calls it: `bfloat16`."""
        self.block_bytes = 0
        for tensor in tensors:
            if tensor.shape[0] != num_blocks or tensor.stride(-1) != 1:
                raise ValueError(f"a cache of shape {tuple(tensor.shape)} does not hold {num_blocks} blocks")
            size = tensor[0].numel() * tensor.element_size()
            plain = tensor.view(torch.uint8)
            self._layers.append(_Layer(plain.numpy() if self.is_on_cpu else plain, self.block_bytes, size))
            self.block_bytes += size

    @property
    def shape(self) -> list[tuple[int, ...]]:
        """Of one block in each layer, in bytes."""
        return [tuple(layer.tensor.shape[1:]) for layer in self._layers]

    @property
    def is_on_cpu(self) -> bool:
        """Whether the model is computed where the cache is written, and nothing of a step is left to do behind it."""
        return bool(self._device.type == "cpu")

    def rows(self, count: int, head_bytes: int = 0) -> Rows:
        """Room for `count` blocks with a head before each; where a device copies to it at full speed, if there is one."""
        shape = (count, head_bytes + self.block_bytes)
        if self.is_on_cpu:
            return np.zeros(shape, dtype=np.uint8)
        pinned: Rows = torch.zeros(shape, dtype=torch.uint8, pin_memory=True).numpy()
        return pinned

    def ready(self) -> Any:
        """A mark that `gather` waits for: all that was computed up to now. To be taken where the model is run."""
        if self.is_on_cpu:
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def gather(self, block_ids: Sequence[int], rows: Rows, ready: Any = None) -> None:
        """Copies blocks into the ends of `rows`; returns when they are there."""
        if self.is_on_cpu:
            for row, block in zip(rows, block_ids, strict=True):
                for layer in self._layers:
                    _part(row, layer, self.block_bytes)[:] = layer.tensor[block]
            return
        with torch.cuda.stream(torch.cuda.Stream(self._device)) as _:
            if ready is not None:
                torch.cuda.current_stream().wait_event(ready)
            ids = torch.tensor(block_ids, device=self._device)
            flat = [layer.tensor.index_select(0, ids).reshape(len(block_ids), -1) for layer in self._layers]
            host = torch.from_numpy(rows)[:, rows.shape[1] - self.block_bytes :]
            host.copy_(torch.cat(flat, dim=1))
            torch.cuda.current_stream().synchronize()

    def scatter(self, rows: Rows, block_ids: Sequence[int]) -> None:
        """Copies the ends of `rows` into blocks; returns when they are there."""
        if self.is_on_cpu:
            for row, block in zip(rows, block_ids, strict=True):
                for layer in self._layers:
                    layer.tensor[block] = _part(row, layer, self.block_bytes)
            return
        with torch.cuda.stream(torch.cuda.Stream(self._device)) as _:
            ids = torch.tensor(block_ids, device=self._device)
            plain = np.ascontiguousarray(rows[:, rows.shape[1] - self.block_bytes :])
            there = torch.from_numpy(plain).to(self._device)
            for layer in self._layers:
                part = there[:, layer.first : layer.first + layer.size]
                layer.tensor.index_copy_(0, ids, part.reshape(len(block_ids), *layer.tensor.shape[1:]))
            torch.cuda.current_stream().synchronize()


def _part(row: Rows, layer: _Layer, block_bytes: int) -> Rows:
    """Where a layer of a block lies in its row."""
    first = len(row) - block_bytes + layer.first
    return row[first : first + layer.size].reshape(layer.tensor.shape[1:])
