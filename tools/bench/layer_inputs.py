"""Seeded inputs of whole layers, and their float64 results: rows ``[q | k | v | z]`` and ``[b | a]``, states VK."""

import inputs as I
import torch
import torch.nn.functional as F
from inputs import BF16, DEVICE, EPS, HD, W

ROWS = 64  # of a large batch, that many are compared with float64


def parameters(r, H: int, HV: int) -> dict:
    D = (2 * H + HV) * HD
    weights = dict(conv_weight=(r(D, W) * 0.5).to(BF16), norm_weight=(1 + 0.1 * r(HD)).to(BF16))
    return weights | dict(A_log=torch.log(r(HV).sigmoid() * 15 + 1), dt_bias=r(HV) * 0.5 - 4, H=H, HV=HV, D=D)


def decode(B: int, H: int, HV: int, state, seed: int, T: int = 0) -> dict:
    """One step of B rows, of T tokens if T: slot 0 of the pools is unused, the others are named in any order."""
    r = I.randn(seed)
    x = parameters(r, H, HV) | dict(B=B, T=T)
    rows = (B, T) if T else (B,)
    x |= dict(mixed_qkvz=r(*rows, x["D"] + HV * HD).to(BF16), ba=r(*rows, 2 * HV).to(BF16))
    x["idx"] = (torch.randperm(B, generator=torch.Generator().manual_seed(seed)) + 1).to(DEVICE, torch.int32)
    x["conv_states"] = r(B + 1, x["D"], W - 1).to(BF16)
    x["pool"] = torch.empty(B + 1, HV, HD, HD, dtype=state, device=DEVICE)
    for part in x["pool"].split(64):
        part.copy_(r(*part.shape) * 0.1)
    x["some"] = torch.arange(B, device=DEVICE)[:: max(1, B // ROWS)]
    return x


def activations(x: dict, window: torch.Tensor) -> list[torch.Tensor]:
    """q (scaled), k, v [.., T, HV, HD] after the convolution of window [.., W - 1 + T, D]."""
    T, ratio = window.shape[-2] - W + 1, x["HV"] // x["H"]
    y = sum(window[..., j : j + T, :] * x["conv_weight"][:, j].double() for j in range(W))
    q, k, v = (y * torch.sigmoid(y)).split([x["H"] * HD, x["H"] * HD, x["HV"] * HD], -1)
    q, k, v = (t.unflatten(-1, (-1, HD)) for t in (q, k, v))
    q, k = (t * torch.rsqrt((t * t).sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    return [(q * HD**-0.5).repeat_interleave(ratio, -2), k.repeat_interleave(ratio, -2), v]


def gates(x: dict, ba: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    b, a = ba.double().chunk(2, -1)
    return -torch.exp(x["A_log"].double()) * F.softplus(a + x["dt_bias"].double()), torch.sigmoid(b)


def gated_norm(x: dict, o: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
    z = mixed[..., x["D"] :].double().unflatten(-1, (-1, HD))
    return o * torch.rsqrt((o * o).mean(-1, keepdim=True) + EPS) * x["norm_weight"].double() * z * torch.sigmoid(z)


def steps(x: dict) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the rows ``some``: y [n, T, HV, HD], the state [n, T, HV, V, K] and the window [n, T, D, W - 1] after every token."""
    some, D, T = x["some"], x["D"], x["T"] or 1
    mixed, ba = (x[n][some].view(len(some), T, -1) for n in ("mixed_qkvz", "ba"))
    slots = x["idx"][some].long()
    window = torch.cat([x["conv_states"][slots].double().mT, mixed[..., :D].double()], 1)
    q, k, v = activations(x, window)
    g, beta = gates(x, ba)
    s, o, states = x["pool"][slots].double(), torch.empty_like(v), []
    for t in range(T):
        s = s * g[:, t].exp()[..., None, None]
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("nhvk,nhk->nhv", s, k[:, t]))
        s = s + u[..., :, None] * k[:, t, :, None, :]
        o[:, t] = torch.einsum("nhvk,nhk->nhv", s, q[:, t])
        states.append(s)
    return gated_norm(x, o, mixed), torch.stack(states, 1), window.unfold(1, W - 1, 1)[:, 1:]


def decode_result(x: dict) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y, states, windows = steps(x)
    return y[:, 0], states[:, 0], windows[:, 0]


def prefill(lens: list[int], H: int, HV: int) -> dict:
    """Packed rows; every third sequence has no history."""
    r, N, T = I.randn(0), len(lens), sum(lens)
    x = parameters(r, H, HV) | dict(lens=lens, cu=I.offsets(lens, torch.int32))
    x |= dict(mixed_qkvz=r(T, x["D"] + HV * HD).to(BF16), ba=r(T, 2 * HV).to(BF16))
    x |= dict(idx=torch.arange(1, N + 1, device=DEVICE, dtype=torch.int32).flip(0), has=torch.arange(N, device=DEVICE) % 3 != 1)
    return x | dict(conv_states=r(N + 1, x["D"], W - 1).to(BF16), pool=r(N + 1, HV, HD, HD) * 0.1)


def prefill_result(x: dict, tokens: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """y [1, tokens, HV, HD]; the states [N, HV, V, K] where these are all tokens."""
    D, has, slots, begin, parts = x["D"], x["has"], x["idx"].long(), 0, []
    for n, length in enumerate(x["lens"]):
        end = min(begin + length, tokens)
        history = x["conv_states"][slots[n]].double().mT * has[n]
        parts.append(activations(x, torch.cat([history, x["mixed_qkvz"][begin:end, :D].double()])))
        begin = end
    q, k, v = (torch.cat(t)[None] for t in zip(*parts))
    g, beta = gates(x, x["ba"][None])
    core = dict(q=q * HD**0.5, k=k, v=v, g=g, beta=beta, lens=x["lens"], h0=x["pool"][slots].mT * has[:, None, None, None])
    o, states = I.delta_rule(core, tokens)
    return gated_norm(x, o, x["mixed_qkvz"][None, :tokens]), None if states is None else states.mT
