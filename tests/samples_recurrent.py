"""Valid calls of the ops that work token by token on a pool of states: a part of tests/samples.py."""

import torch
from sample_inputs import BF16, FP16, FP32, HV, SHORT, D, Draw, H, pick, tokens

ODD = dict(K=48, V=100)  # no power of two: the masked variants


def update(v_first=False, raw=True, state=FP32, index=torch.int32, rows=3, T=1, two_d=False, dtype=BF16, K=D, V=D):
    """Row 1 is padding (slot -1); slots of the pool are separated by a gap."""

    def build(device):
        r = Draw(device)
        x = dict(q=r.normal(rows, T, H, K, dtype=dtype), k=r.normal(rows, T, H, K, dtype=dtype), v=r.normal(rows, T, HV, V, dtype=dtype))
        if raw:
            x |= dict(A_log=r.normal(HV), a=r.normal(rows, T, HV, dtype=dtype), dt_bias=r.normal(HV), b=r.normal(rows, T, HV, dtype=dtype))
        else:
            x |= dict(g=-0.1 * r.normal(rows, T, HV).abs(), beta=r.normal(rows, T, HV).sigmoid())
        slots = 3 + rows * (T if two_d else 1)
        x["ssm_pool"] = r.normal(slots, 2, HV, *((V, K) if v_first else (K, V)), scale=0.1).to(state)[:, 1]
        if two_d:
            x |= dict(ssm_indices=r.ints([[1 + n * T + t for t in range(T)] for n in range(rows)], index))
            x |= dict(num_accepted_tokens=r.ints([1 + n % T for n in range(rows)], torch.int32))
        else:
            x |= dict(ssm_indices=r.ints([-1 if n == 1 else slots - 1 - n for n in range(rows)], index))
        missing = ("g", "beta") if raw else ("A_log", "a", "dt_bias", "b")
        return x | dict.fromkeys(missing) | dict(use_qk_l2norm_in_kernel=True, state_v_first=v_first)

    return build


def verify(v_first=True, tree=False, state=BF16, K=D, V=D):
    """Target verify: the pool is only read, every step's state goes to a buffer; rows of a draft tree or of a chain."""

    def build(device):
        args, r = update(v_first, T=4, state=state, K=K, V=V)(device), Draw(device, 1)
        last = args["ssm_pool"].shape[1:]
        args |= dict(
            intermediate_states=r.normal(4, 4, *last, scale=0.1).to(state), intermediate_indices=r.ints([3, 0, 1]), update_state=False
        )
        return args | (dict(parents=r.ints([[-1, 0, 0, 1]] * 3, torch.int32)) if tree else {})

    return build


def update_packed(index=torch.int64):
    """Packed tokens, raw gates, states read from one slot and written to another, some rows new requests."""

    def build(device):
        x, r, N = tokens(device, True, lens=SHORT)
        T = x["v"].shape[1]
        args = pick(x, "q", "k", "v", "cu_seqlens", g=None, beta=None, A_log=r.normal(HV), dt_bias=r.normal(HV))
        args |= dict(a=r.normal(1, T, HV, dtype=BF16), b=r.normal(1, T, HV, dtype=BF16), ssm_pool=r.normal(12, HV, D, D, scale=0.1))
        args |= dict(ssm_indices=r.ints([2, 4, 6, 8, 10], index), ssm_write_indices=r.ints([3, 5, 0, 9, 11], index))
        return args | dict(has_initial_state=r.ints([1, 0, 0, 1, 1], torch.bool), use_qk_l2norm_in_kernel=True, min_slot=1)

    return build


def packed_decode(v_first=True, state=FP32, dtype=BF16, K=D, V=D, grouped=False):
    """Rows of a projection with a and b behind them; row 1 is padding."""

    def build(device):
        r, width = Draw(device), 2 * H * K + HV * V
        wide = r.normal(3, width + 2 * HV, dtype=dtype)
        a, b = wide[:, width : width + HV], wide[:, width + HV :]
        if grouped:
            a, b = wide[:, width:].unflatten(1, (H, -1)).split(HV // H, -1)
        args = dict(mixed_qkv=wide[:, :width], a=a, b=b, A_log=r.normal(HV), dt_bias=r.normal(HV), scale=None)
        args |= dict(ssm_pool=r.normal(5, HV, *((V, K) if v_first else (K, V)), scale=0.1).to(state))
        args |= dict(out=torch.zeros(3, 1, HV, V, dtype=dtype, device=device), ssm_indices=r.ints([4, -1, 1], torch.int32))
        return args | dict(use_qk_l2norm_in_kernel=True, state_v_first=v_first)

    return build


def prefill_on_pool(v_first=False, state=FP32, checkpointed=True, packed=True, dtype=BF16, K=D, V=D):
    """Row 1 is padding; checkpoints every 64 tokens of prompts that began before the call, some of them skipped."""

    def build(device):
        x, r, N = tokens(device, packed, dtype, K, V)
        last = (V, K) if v_first else (K, V)
        args = x | dict(ssm_pool=r.normal(N + 3, 2, HV, *last, scale=0.1).to(state)[:, 1], use_qk_l2norm_in_kernel=True)
        args |= dict(ssm_indices=r.ints([-1 if n == 1 else N + 2 - n for n in range(N)]), state_v_first=v_first)
        args |= dict(has_initial_state=r.ints([n % 2 == 0 for n in range(N)], torch.bool))
        if checkpointed:
            slots = [[-1 if (n + j) % 3 == 2 else 3 * n + j for j in range(3)] for n in range(N)]
            args |= dict(checkpoints=r.normal(3 * N, HV, *last), checkpoint_every=64, checkpoint_indices=r.ints(slots, torch.int32))
            args |= dict(prefix_lens=r.ints([40 * n for n in range(N)]))
        return args

    return build


def rounded(build, fp8=False):
    """The same call on an fp8 pool with scales, or with stochastic rounding of its bf16 pool."""

    def change(device):
        args = build(device)
        if not fp8:
            return args | dict(rounding_seed=torch.tensor([7], device=device))
        return args | dict(ssm_pool=args["ssm_pool"].to(torch.float8_e4m3fn), pool_scale=torch.linspace(0.5, 2, HV, device=device))

    return change


RECURRENT = {
    "fused_recurrent_gated_delta_rule_packed_decode": [
        packed_decode(), packed_decode(grouped=True), packed_decode(False, BF16, FP16, **ODD),
        rounded(packed_decode(state=BF16)), rounded(packed_decode(), fp8=True),
    ],
    "chunk_gated_delta_rule_update": [
        prefill_on_pool(), prefill_on_pool(True, BF16), prefill_on_pool(checkpointed=False, packed=False, state=FP16),
        prefill_on_pool(dtype=FP16, **ODD), rounded(prefill_on_pool(True, BF16)), rounded(prefill_on_pool(), fp8=True),
    ],
    "fused_recurrent_gated_delta_rule_update": [
        update(), update(v_first=True), update(raw=False, state=BF16, index=torch.int64), update(T=3, v_first=True),
        update(dtype=FP16, **ODD), update_packed(), update(T=4, two_d=True, v_first=True), update(T=2, two_d=True, state=BF16, **ODD),
        verify(), verify(tree=True), verify(v_first=False, tree=True, state=FP32, **ODD),
        rounded(update(state=BF16)), rounded(update(T=2, two_d=True, v_first=True, **ODD), fp8=True),
    ],
}  # fmt: skip
