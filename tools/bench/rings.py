"""Ring decode and verify, with as many rows due as there are on average: lengths are spread over a cycle."""

import inputs as I
import torch
from cases import Case, call, layers_of, size
from inputs import GPU, HD

R = 16


def ring_inputs(B: int, H: int, HV: int, state, T: int, seed: int) -> dict:
    """Rows of T tokens; row n has a ring of ``lengths[n]`` entries, and R of them make a row of one token due."""
    x = I.decode(B, H, HV, state, seed)
    r = I.randn(seed + 1000)
    if T > 1:
        x |= {n: r(B, T, *x[n].shape[2:]).to(x[n].dtype) for n in ("q", "k", "v", "a", "b")}
    x["ring_k"] = torch.nn.functional.normalize(r(B + 1, R, H, HD), dim=-1)
    x["ring_u"], x["ring_g"] = r(B + 1, R, HV, HD) * 0.1, -0.05 * r(B + 1, R, HV).abs()
    x["lengths"] = torch.arange(B + 1, device=I.DEVICE, dtype=torch.int32) % R + 1
    return x


def folded(x: dict, count: torch.Tensor) -> torch.Tensor:
    """float64 states [B, HV, K, V] after the first ``count`` [B] entries."""
    HV = x["v"].shape[2]
    wide = lambda t: t.repeat_interleave(HV // t.shape[1], 1)  # noqa: E731  [B, H, K] -> [B, HV, K]
    h = x["pool"][1:].double()
    for j in range(R):
        g, k, u = (x[n][1:, j].double() for n in ("ring_g", "ring_k", "ring_u"))
        after = h * g.exp()[..., None, None] + wide(k)[..., None] * u[..., None, :]
        h = torch.where((count > j)[:, None, None, None], after, h)
    return h


def truth(x: dict) -> tuple[torch.Tensor]:
    """float64: entries and tokens, one after another."""
    h, o = folded(x, x["lengths"][1:]), []
    for t in range(x["q"].shape[1]):
        o_t, h = I.decode_step(
            {n: x[n][:, t : t + 1] for n in ("q", "k", "v", "a", "b")}
            | {n: x[n] for n in ("A_log", "dt_bias")}
            | dict(pool=torch.cat([h[:1], h]))
        )
        o.append(o_t)
    return (torch.cat(o, 1),)


def step(v_first: bool):
    def make(x):
        args = {n: x[n] for n in ("q", "k", "v", "A_log", "a", "dt_bias", "b")} | dict(g=None, beta=None)
        args |= dict(ssm_pool=x["pool"].transpose(-1, -2).contiguous() if v_first else x["pool"].clone(), ssm_indices=x["idx"])
        args |= dict(ring_k=x["ring_k"].clone(), ring_u=x["ring_u"].clone(), ring_g=x["ring_g"].clone(), ring_lengths=x["lengths"])
        return call("fused_recurrent_gated_delta_rule_ring", **args, use_qk_l2norm_in_kernel=True, state_v_first=v_first)

    return make


def verified(B: int, H: int, HV: int, state, T: int, seed: int) -> dict:
    """Rows of T tokens on states without entries, or the entries that such rows left, of which 1 to T are accepted."""
    x = ring_inputs(B, H, HV, state, T, seed)
    return x | dict(lengths=torch.zeros_like(x["lengths"]), accepted=torch.arange(B, device=I.DEVICE, dtype=torch.int32) % T + 1)


def commit(x):
    pool = x["pool"].transpose(-1, -2).contiguous()
    args = dict(ssm_pool=pool, num_entries=x["accepted"], ssm_indices=x["idx"], state_v_first=True)
    return call("commit_accepted", **args, **{n: x[n] for n in ("ring_k", "ring_u", "ring_g")}), lambda _: (pool[1:].transpose(-1, -2),)


def rings():
    for state in (torch.float32, torch.bfloat16):
        for H, HV in ((16, 32), (4, 8)) if GPU else ((2, 4),):
            for T, B in (
                [(1, B) for B in (1, 8, 32, 64, 128, 256, 512)] + [(4, B) for B in (1, 32, 64, 128, 256)] if GPU else ((1, 17), (3, 5))
            ):
                one = B * HV * HD * HD * state.itemsize  # read; and written by the rows that are due
                for v_first in (False, True):
                    name = f"{'fp32' if state.itemsize == 4 else 'bf16'} {'VK' if v_first else 'KV'} {H}/{HV} B {B}{f' T {T}' * (T > 1)}"
                    yield Case(
                        "ring", name, "fused_recurrent_gated_delta_rule_ring",
                        inputs=lambda i, B=B, H=H, HV=HV, s=state, T=T: ring_inputs(B, H, HV, s, T, i),
                        ours=step(v_first), truth=truth, marks=(4e-3,), peers=False, layers=layers_of(one, 24),
                        nbytes=lambda x, one=one, T=T: one * (1 + T / R) + size(x["ring_k"], x["ring_u"]) / 2,
                    )  # fmt: skip
            for T, B in [(4, B) for B in (1, 32, 64, 256)] if GPU else ((3, 5),):
                one = B * HV * HD * HD * state.itemsize
                name = f"{'fp32' if state.itemsize == 4 else 'bf16'} VK {H}/{HV} B {B}"
                common = dict(
                    group="ring",
                    inputs=lambda i, B=B, H=H, HV=HV, s=state, T=T: verified(B, H, HV, s, T, i),
                    peers=False,
                    layers=layers_of(one, 24),
                )
                yield Case(
                    name=f"{name}, verify of {T}", op="fused_recurrent_gated_delta_rule_ring", ours=step(True), truth=truth, marks=(4e-3,),
                    nbytes=lambda x, one=one: one, **common,
                )  # fmt: skip
                yield Case(
                    name=f"{name}, their commit", op="commit_accepted", ours=commit, truth=lambda x: (folded(x, x["accepted"]),),
                    marks=(1e-5 if state == torch.float32 else 4e-3,), nbytes=lambda x, one=one: 2 * one, **common,
                )  # fmt: skip
