"""Seeded inputs of every case, and their float64 results. Values and seeds are those of docs/performance.md's peers.

Without a GPU the same code makes small tensors on the CPU, so that a dry run checks every case.
"""

import math

import torch
import torch.nn.functional as F

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
BF16 = torch.bfloat16
HD, W, EPS = 128, 4, 1e-6  # head size, conv width, norm epsilon
RAGGED = [3000, 17, 1, 640, 2048, 65, 900, 4096, 5, 130, 1500, 64, 63, 1000, 333, 2500]
PREFIX = 1024 if GPU else 96  # tokens of a long dense case that are compared with float64


def randn(seed: int):
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, device=DEVICE)


def offsets(lens: list[int], dtype=torch.int64) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], dtype=dtype, device=DEVICE)


def prefill(lens: list[int], H: int, HV: int, K: int = HD, V: int = HD, dtype=BF16) -> dict:
    """One packed row of tokens: q, k [1, T, H, K], v [1, T, HV, V], gates raw (a, b) and computed (g, beta)."""
    generator = torch.Generator(device=DEVICE).manual_seed(0)
    T = sum(lens)

    def r(*shape):
        return torch.randn(*shape, generator=generator, device=DEVICE)

    def uniform(n):
        return torch.rand(n, generator=generator, device=DEVICE)

    q, k, v = r(1, T, H, K).to(dtype), r(1, T, H, K).to(dtype), r(1, T, HV, V).to(dtype)
    A_log = torch.log(uniform(HV) * 15.0 + 1.0)
    dt = torch.exp(uniform(HV) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
    dt_bias = dt + torch.log(-torch.expm1(-dt))
    a, b = r(1, T, HV).to(dtype), r(1, T, HV).to(dtype)
    g = -torch.exp(A_log) * F.softplus(a.float() + dt_bias)
    beta, h0 = torch.sigmoid(b.float()), r(len(lens), HV, K, V) * 0.1
    x = dict(q=q, k=k, v=v, a=a, b=b, A_log=A_log, dt_bias=dt_bias, g=g, beta=beta, h0=h0, cu=offsets(lens), lens=list(lens))
    return x | dict(H=H, HV=HV, varlen=len(lens) > 1)


def delta_rule(x: dict, tokens: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Token loop in float64 with l2norm: o [1, tokens, HV, V], final states [N, HV, K, V] (None for a prefix only)."""
    q, k, v = (x[n][0, :tokens].double() for n in "qkv")
    q, k = (t / torch.sqrt((t * t).sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    rep = v.shape[1] // q.shape[1]
    q, k = q.repeat_interleave(rep, 1) * q.shape[-1] ** -0.5, k.repeat_interleave(rep, 1)
    decay, beta = x["g"][0].double().exp(), x["beta"][0].double()
    o, states, p = torch.empty_like(v), [], 0
    for n, length in enumerate(x["lens"]):
        s = x["h0"][n].double()
        for t in range(p, min(p + length, tokens)):
            s = s * decay[t][:, None, None]
            u = beta[t][:, None] * (v[t] - torch.einsum("hkv,hk->hv", s, k[t]))
            s = s + k[t][:, :, None] * u[:, None, :]
            o[t] = torch.einsum("hkv,hk->hv", s, q[t])
        states.append(s)
        p += length
    return o[None], torch.stack(states) if tokens == p else None


def decode(B: int, H: int, HV: int, state, seed: int) -> dict:
    """One step of B rows on a pool [B + 1, HV, K, V] whose slot 0 is unused."""
    generator = torch.Generator(device=DEVICE).manual_seed(seed)

    def r(*shape):
        return torch.randn(*shape, generator=generator, device=DEVICE)

    x = {n: r(B, 1, h, HD).to(BF16) for n, h in (("q", H), ("k", H), ("v", HV))}
    x["a"], x["b"] = r(B, 1, HV).to(BF16), r(B, 1, HV).to(BF16)
    x["A_log"] = torch.log(torch.rand(HV, generator=generator, device=DEVICE) * 15 + 1)
    x["dt_bias"] = r(HV) * 0.5 - 4
    x["pool"] = (r(B + 1, HV, HD, HD) * 0.1).to(state)
    x["idx"] = torch.arange(1, B + 1, device=DEVICE, dtype=torch.int32)
    x["g"] = -torch.exp(x["A_log"]) * F.softplus(x["a"].float() + x["dt_bias"])
    x["beta"] = torch.sigmoid(x["b"].float())
    return x


def decode_step(x: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """float64: o [B, 1, HV, V] and the states after the step [B, HV, K, V]; pool is [slot, HV, K, V]."""
    q, k, v = (x[n][:, 0].double() for n in "qkv")
    q, k = (t / torch.sqrt((t * t).sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    rep = v.shape[1] // q.shape[1]
    q, k = q.repeat_interleave(rep, 1) * HD**-0.5, k.repeat_interleave(rep, 1)
    g = -torch.exp(x["A_log"].double()) * F.softplus(x["a"][:, 0].double() + x["dt_bias"].double())
    beta = torch.sigmoid(x["b"][:, 0].double())
    s = x["pool"][1:].double() * g.exp()[..., None, None]
    u = beta[..., None] * (v - torch.einsum("bhkv,bhk->bhv", s, k))
    s = s + k[..., None] * u[..., None, :]
    return torch.einsum("bhkv,bhk->bhv", s, q)[:, None], s


def conv(lens: list[int], D: int) -> dict:
    """Packed x [T, D], weight [D, W], pool of histories [slots, D, W - 1] with one slot a sequence, some without history."""
    r, n, T = randn(0), len(lens), sum(lens)
    x = dict(x=r(T, D).to(BF16), weight=(r(D, W) * 0.5).to(BF16), hist=r(n, D, W - 1).to(BF16), lens=lens)
    x["has"] = torch.arange(n, device=DEVICE) % 3 != 1
    x["idx"] = torch.arange(1, n + 1, device=DEVICE, dtype=torch.int32).flip(0)
    x["states"] = torch.zeros(n + 1, D, W - 1, device=DEVICE, dtype=BF16)
    x["states"][x["idx"].long()] = x["hist"]
    return x | dict(cu=offsets(lens, torch.int32))


def conv_result(x: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """y [T, D] (float64 sums, kept in float32) and the new histories [N, D, W - 1]."""
    p, ys, states = 0, [], []
    for i, length in enumerate(x["lens"]):
        window = torch.cat([x["hist"][i].t() * x["has"][i], x["x"][p : p + length]]).double()
        y = sum(window[j : j + length] * x["weight"][:, j].double() for j in range(W))
        ys.append((y * torch.sigmoid(y)).float())
        states.append(window[-(W - 1) :].t())
        p += length
    return torch.cat(ys), torch.stack(states)


def conv_step(B: int, D: int, seed: int) -> dict:
    r = randn(seed)
    x = dict(x=r(B, D).to(BF16), weight=(r(D, W) * 0.5).to(BF16), states=r(B + 1, D, W - 1).to(BF16))
    x["beside"] = r(B, D // 2 + D // HD).to(BF16)  # z [HV, HD], b and a [HV], HV = D / 2 / HD
    return x | dict(idx=torch.arange(1, B + 1, device=DEVICE, dtype=torch.int32))


def conv_step_result(x: dict) -> tuple[torch.Tensor, torch.Tensor]:
    window = torch.cat([x["states"][1:], x["x"][:, :, None]], 2).double()
    y = (window * x["weight"].double()).sum(2)
    return y * torch.sigmoid(y), window[:, :, 1:]


def tokens(T: int, H: int, HV: int) -> dict:
    """What surrounds the core: gates' inputs, read-outs o and gates z [T, HV, HD], q [1, T, H, HD]."""
    r = randn(1)
    x = dict(a=r(T, HV).to(BF16), b=r(T, HV).to(BF16), A_log=torch.log(r(HV).sigmoid() * 15 + 1), dt_bias=r(HV) * 0.5 - 4)
    x |= dict(o=r(T, HV, HD).to(BF16), z=r(T, HV, HD).to(BF16), weight=(1 + 0.1 * r(HD)).to(BF16))
    return x | dict(q=r(1, T, H, HD).to(BF16))


def gates(x: dict) -> tuple[torch.Tensor, torch.Tensor]:
    g = -torch.exp(x["A_log"].double()) * F.softplus(x["a"].double() + x["dt_bias"].double())
    return g, torch.sigmoid(x["b"].double())


def gated_norm(x: dict) -> tuple[torch.Tensor]:
    o, z = x["o"].double(), x["z"].double()
    return (o * torch.rsqrt((o * o).mean(-1, keepdim=True) + EPS) * x["weight"].double() * z * torch.sigmoid(z),)
