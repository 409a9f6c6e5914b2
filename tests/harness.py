"""Inputs, poison and the one way results are compared."""

import torch


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def guarded(x: torch.Tensor, device: str = "cpu") -> torch.Tensor:
    """A copy of x cut out of a larger buffer of NaN (of the largest value for integers), rows before and after."""
    pad = max(64, x.shape[-1] if x.dim() else 1)
    buffer = torch.full((x.numel() + 2 * pad,), float("nan") if x.is_floating_point() else 2**30, dtype=x.dtype)
    buffer = buffer.to(device)
    view = buffer[pad : pad + x.numel()].view(x.shape)
    view.copy_(x)
    return view


def assert_close(got: torch.Tensor, want: torch.Tensor, rms: float, worst: float | None = None, what: str = "") -> None:
    """RMS of the difference over RMS of the reference <= rms, no element further off than ``worst`` (default 8 * rms)
    times the largest reference value, and the same NaN and inf positions. A failure names the worst element."""
    assert tuple(got.shape) == tuple(want.shape), f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    got, want = got.detach().cpu().double(), want.detach().cpu().double()
    odd_got, odd_want = ~torch.isfinite(got), ~torch.isfinite(want)
    assert torch.equal(odd_got, odd_want), (
        f"{what}: {odd_got.sum()} non-finite values, expected {odd_want.sum()}; first at {odd_got.ne(odd_want).nonzero()[:1].tolist()}"
    )
    if got.numel() == 0:
        return
    diff = torch.where(odd_want, torch.zeros_like(got), (got - want).abs())
    scale = torch.where(odd_want, torch.zeros_like(want), want)
    error = (diff.square().mean().sqrt() / scale.square().mean().sqrt().clamp_min(1e-30)).item()
    at = torch.unravel_index(diff.argmax(), diff.shape)
    at = [int(i) for i in at]
    bound = (8 * rms if worst is None else worst) * scale.abs().max().clamp_min(1e-30).item()
    text = f"{what}: rms error {error:.3e} (allowed {rms:.1e}), worst {diff.max().item():.3e} (allowed {bound:.3e}) at {at}: got {got[tuple(at)].item():.6g}, expected {want[tuple(at)].item():.6g}"
    assert error <= rms and diff.max().item() <= bound, text
