"""Pools of slots in every layout that engines keep, cut from buffers of a sentinel that must survive."""

from dataclasses import dataclass

import torch
from harness import seeded

BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
LAYOUTS = ["states", "one layer", "history", "channels last", "sliced", "odd start", "layer of many", "transposed", "numbers"]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = (t.detach().cpu().contiguous() for t in (a, b))
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.view(BYTES[a.itemsize]), b.view(BYTES[b.itemsize]))


@dataclass
class Pool:
    view: torch.Tensor
    slot_dim: int
    buffer: torch.Tensor  # what the view was cut from

    def check(self, want: torch.Tensor) -> None:
        """The view holds ``want`` bit by bit, and nothing around it was written."""
        assert same_bits(self.view, want)
        self.view.fill_(0)
        assert (self.buffer.float() == 72).sum() == self.buffer.numel() - self.view.numel()
        self.view.copy_(want)


def make_pool(layout: str, dtype, device, layers=2, slots=6) -> Pool:
    def new(*shape):
        return torch.full(shape, 72.0).to(dtype).to(device)

    slot_dim, L, S = 1, layers, slots
    if layout == "states":
        view = (buffer := new(L, S + 1, 2, 16, 32))[:, :S]
    elif layout == "one layer":
        slot_dim, view = 0, (buffer := new(S, 3, 2, 16, 24))[:, 1]
    elif layout == "history":
        view = (buffer := new(L, S + 1, 64, 3))[:, 1:]
    elif layout == "channels last":
        view = (buffer := new(L, S, 3, 64)).transpose(2, 3)
    elif layout == "sliced":
        view = (buffer := new(L, S, 10, 8))[..., 2:5]
    elif layout == "odd start":
        view = (buffer := new(1 + L * S * 40))[1:].view(L, S, 4, 10)
    elif layout == "layer of many":
        slot_dim, view = 0, (buffer := new(S, 4, 2, 8, 16))[:, 2]
    elif layout == "transposed":
        view = (buffer := new(3, S, L, 8, 5)).permute(2, 1, 4, 0, 3)[..., :7]
    else:
        view = (buffer := new(L, S))
    view.copy_((torch.randn(view.shape, generator=seeded(3)) * 3).to(dtype))
    return Pool(view, slot_dim, buffer)
