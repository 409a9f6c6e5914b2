"""Every op in float64, from its definition: what tests compare with. Slow and plain on purpose."""

import torch

F64 = torch.float64


def l2norm(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    x = x.to(F64)
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps)
