import pytest
import torch
from harness import assert_close, guarded
from recurrent_cases import BF16, FP16, FP32, RMS, Case, bits, compare, run_update, setup

import gdn_ops
from gdn_ops import reference

CASES = [
    Case("v-first", K=128, B=3, v_first=True),
    Case("k-first", H=2, HV=4, B=4),
    Case("ratio-3", H=2, HV=6, B=2, v_first=True, state=BF16, gates=BF16),
    Case("fp16", B=2, dtype=FP16, gates=FP16, state=FP16),
    Case("fp32", B=2, dtype=FP32, state=BF16, v_first=True),
    Case("odd-sizes", H=2, HV=2, B=3, K=60, V=20, index=torch.int32),
    Case("odd-sizes-v-first", H=2, HV=8, B=2, K=100, V=13, v_first=True),
    Case("no-norm", B=2, l2norm=False, scale=0.5),
    Case("no-rows", B=0),
]


def inputs(case, device, odd=0, gap=0, slots=None):
    """Rows [q | k | v] cut from a wider projection, ``odd`` columns in; a, b behind them; the tokens they were made of."""
    x = setup(case, device, slots, index=case.index)
    rows = torch.cat([t.flatten(1) for t in (x.q, x.k, x.v)], 1)
    wide = guarded(torch.randn(case.B, odd + rows.shape[1] + 5), device).to(case.dtype)
    x.mixed_qkv = wide[:, odd : odd + rows.shape[1]].copy_(rows)
    out = torch.full((case.B, case.HV * case.V + gap), float("nan"), dtype=case.dtype, device=device)
    x.out_storage, x.out = out, out[:, : case.HV * case.V].unflatten(1, (1, case.HV, case.V))
    return x


def arguments(case, x, **options):
    args = dict(mixed_qkv=x.mixed_qkv, a=x.a[:, 0], b=x.b[:, 0], A_log=x.A_log, dt_bias=x.dt_bias, scale=case.scale, ssm_pool=x.pool)
    return args | dict(out=x.out, ssm_indices=x.slots, use_qk_l2norm_in_kernel=case.l2norm, state_v_first=case.v_first) | options


def run(case, x, **options):
    assert gdn_ops.fused_recurrent_gated_delta_rule_packed_decode(**arguments(case, x, **options)) is None


def expected(case, x, **options):
    args = arguments(case, x, **options)
    del args["out"]
    return reference.fused_recurrent_gated_delta_rule_packed_decode(**args)


@pytest.mark.parametrize("odd, gap", [(0, 0), (1, 3)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(backend, case, odd, gap):
    x, again = inputs(case, backend.device, odd, gap), inputs(case, backend.device, odd, gap)
    want_o, want_pool = expected(case, x)
    before = x.storage.clone()
    run(case, x)
    assert_close(x.out[:, 0], want_o, RMS[case.dtype], what="out")
    assert compare(x.pool, x.storage, before, want_pool, "states") == x.slots.tolist()
    assert x.out_storage[:, case.HV * case.V :].isnan().all()
    run(case, again, out=again.out[:, 0])
    assert torch.equal(bits(again.out_storage), bits(x.out_storage)) and torch.equal(bits(again.storage), bits(x.storage))


def test_it_is_the_update_of_one_token(backend):
    case = Case("", H=2, HV=4, B=3, K=128, raw=True, v_first=True)
    x, want = inputs(case, backend.device), setup(case, backend.device)
    run(case, x)
    assert torch.equal(x.out, run_update(case, want)) and torch.equal(bits(x.storage), bits(want.storage))


@pytest.mark.parametrize("H, HV", [(1, 3), (2, 2), (2, 4), (2, 8)])
def test_gates_in_key_head_groups(backend, H, HV):
    """a and b of an interleaved projection, [.., H, HV // H] with a stride between groups: the bits of flat gates."""
    case = Case("", H=H, HV=HV, B=2, raw=True, v_first=True)
    x, flat = inputs(case, backend.device), inputs(case, backend.device)
    wide = torch.randn(2, H, 3 + 2 * HV // H).to(case.gates).to(backend.device)
    a, b = wide[..., 2 : 2 + HV // H], wide[..., 2 + HV // H : -1]
    run(case, x, a=a, b=b)
    run(case, flat, a=a.flatten(1), b=b.flatten(1))
    assert torch.equal(x.out, flat.out) and torch.equal(bits(x.storage), bits(flat.storage)) and x.out.any()


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("lengths", [None, (2, 0, 3)], ids=str)
def test_update_with_gates_in_key_head_groups(backend, lengths, raw):
    case = Case("", H=2, HV=6, B=2, T=3, lengths=lengths, raw=raw)
    x, flat = setup(case, backend.device), setup(case, backend.device)
    wide = torch.randn(*x.g.shape[:2], 2, 9).sigmoid_().neg_().to(backend.device)
    names = ("a", "b") if raw else ("g", "beta")
    grouped = dict(zip(names, (wide[..., 1:4], wide[..., 5:8] if raw else -wide[..., 5:8])))
    o = run_update(case, x, **grouped)
    want = run_update(case, flat, **{n: t.flatten(2) for n, t in grouped.items()})
    assert torch.equal(o, want) and torch.equal(bits(x.storage), bits(flat.storage))
    want_o, _, _ = reference.fused_recurrent_gated_delta_rule_update(
        *(getattr(x, n) for n in "qkv"), *(grouped.get(n) for n in ("g", "beta")), *((x.A_log, grouped["a"], x.dt_bias, grouped["b"]) if raw else [None] * 4),
        setup(case, backend.device).pool, x.slots, cu_seqlens=x.cu_seqlens, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    assert_close(o, want_o, RMS[BF16], what="o")


CASE = Case("", H=2, HV=4)
X = inputs(CASE, "cpu", gap=1)
REFUSALS = [
    (dict(mixed_qkv=X.mixed_qkv[:, :-1]), r"mixed_qkv: expected 2 \* H \* K \+ HV \* V columns, with HV a multiple of H, got 383"),
    (dict(mixed_qkv=X.mixed_qkv[:, :128]), "mixed_qkv: expected 2 "),
    (dict(mixed_qkv=X.mixed_qkv[None]), r"mixed_qkv: expected shape \[any, any\]"),
    (dict(mixed_qkv=X.mixed_qkv.repeat(1, 2)[:, ::2]), "mixed_qkv: expected unit stride in the last dimension, got stride 2"),
    (dict(mixed_qkv=X.mixed_qkv.double()), "mixed_qkv: expected bf16 or fp16 or fp32"),
    (dict(a=X.a), r"a: expected shape \[2, 2, 2\], got \[2, 1, 4\]"),
    (dict(b=X.b[:, 0, :3]), r"b: expected shape \[2, 4\], got \[2, 3\]"),
    (dict(A_log=X.A_log[None]), r"A_log: expected shape \[any\]"),
    (dict(dt_bias=X.dt_bias.half()), "dt_bias: expected fp32 or bf16, got fp16"),
    (dict(ssm_pool=X.pool[:, :3]), r"ssm_pool: expected shape \[any, 4, any, any\], got \[6, 3, 64, 32\]"),
    (dict(ssm_pool=X.pool.mT), "ssm_pool: expected contiguous slots"),
    (dict(ssm_pool=X.pool[..., :0]), "ssm_pool: expected a head size V of 1 to 256, got 0"),
    (dict(ssm_indices=X.slots[:1]), r"ssm_indices: expected shape \[2\], got \[1\]"),
    (dict(out=X.out[:1]), r"out: expected shape \[2, 1, 4, 32\], got \[1, 1, 4, 32\]"),
    (dict(out=X.out[:, 0, :, :31]), r"out: expected shape \[2, 4, 32\], got \[2, 4, 31\]"),
    (dict(out=X.out.float()), "out: expected bf16, got fp32"),
    (dict(out=X.out[:1].expand(2, -1, -1, -1)), "out: expected contiguous slots"),
    (dict(out=X.out.transpose(2, 3).contiguous().transpose(2, 3)), "out: expected contiguous slots"),
    (dict(mixed_qkv=X.mixed_qkv.clone().requires_grad_()), "mixed_qkv: expected no gradient"),
]  # fmt: skip


@pytest.mark.parametrize("changes, message", REFUSALS, ids=lambda x: x[:40] if isinstance(x, str) else "")
def test_refusals(changes, message):
    x = inputs(CASE, "cpu")
    before = x.storage.clone()
    with pytest.raises(RuntimeError, match=r"gdn\.fused_recurrent_gated_delta_rule_packed_decode: .*" + message):
        run(CASE, x, **changes)
    assert torch.equal(bits(x.storage), bits(before)) and x.out.isnan().all()
