"""What the references share."""

import torch

F64 = torch.float64


def sequences(rows: int, tokens: int, cu_seqlens: torch.Tensor | None) -> list[tuple[int, int, int]]:
    """``(batch row, first token, end)`` of every sequence. Offsets are clamped to the tokens there are."""
    if cu_seqlens is None:
        return [(b, 0, tokens) for b in range(rows)]
    bounds = [min(max(c, 0), tokens) for c in cu_seqlens.tolist()]
    return [(0, start, max(start, end)) for start, end in zip(bounds, bounds[1:])]
