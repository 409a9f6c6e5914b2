"""Prefill on pools narrower than its sums: what is stored is what an fp32 pool gets, rounded; what is read, bit for bit."""

import numpy as np
import pytest
import torch
from test_chunk_gated_delta_rule_update import OP, inputs, ints, make_pool

FP8 = torch.float8_e4m3fn
CASES = pytest.mark.parametrize("v_first, K, V", [(False, 64, 64), (True, 64, 128)])  # the sizes of chunks
LENS, SLOTS = [5, 70, 64], [6, 1, 3]


def random_bits(seed: int, slot: int, elements: int) -> np.ndarray:
    """The 16 bits of a slot's elements, as csrc/cuda/rounding.h defines them."""
    word, long = np.uint32, 1 << 64

    def mix(x):
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % long
        x = (x ^ x >> 27) * 0x94D049BB133111EB % long
        return x ^ x >> 31

    odd = 0x9E3779B97F4A7C15
    key = mix((mix((seed + odd) % long) + slot * odd) % long)
    x = np.arange(elements, dtype=word) ^ word(key % (1 << 32))
    x = (x ^ (x >> word(16))) * word(0x7FEB352D)
    x = (x ^ (x >> word(15))) + word(key >> 32)
    x = (x ^ (x >> word(16))) * word(0x846CA68B)
    return ((x ^ (x >> word(15))) * word(0x9E3779B1)) >> word(16)


def stored(backend, x, pool, v_first, **options):
    OP(**x, ssm_pool=pool, ssm_indices=ints(backend, SLOTS), state_v_first=v_first, **options)
    return pool


def last(K, V, v_first):
    return (V, K) if v_first else (K, V)


@CASES
@pytest.mark.parametrize("seed", [0, -3])
def test_random_bits(backend, v_first, K, V, seed):
    x = inputs(backend, LENS, K=K, V=V) | dict(has_initial_state=torch.zeros(3, dtype=torch.bool, device=backend.device))
    exact = stored(backend, x, make_pool(backend, 8, 2, *last(K, V, v_first)), v_first).cpu()
    pool = make_pool(backend, 8, 2, *last(K, V, v_first), dtype=torch.bfloat16)
    before = pool.cpu()
    got = stored(backend, x, pool, v_first, rounding_seed=torch.tensor([seed], device=backend.device)).cpu()
    for slot in SLOTS:
        bits = exact[slot].transpose(-1, -2) if v_first else exact[slot]
        bits = bits.contiguous().numpy().view(np.uint32).reshape(-1)
        want = torch.from_numpy((bits + random_bits(seed, slot, bits.size) >> np.uint32(16) << np.uint32(16)).view(np.float32))
        mine = got[slot].transpose(-1, -2) if v_first else got[slot]
        assert torch.equal(mine.float().reshape(-1), want)
    others = [s for s in range(8) if s not in SLOTS]
    assert torch.equal(got[others], before[others])


@CASES
def test_fp8(backend, v_first, K, V):
    scales = torch.tensor([0.02, 0.3], device=backend.device)
    x = inputs(backend, LENS, K=K, V=V)
    exact = make_pool(backend, 8, 2, *last(K, V, v_first))
    exact[6] *= 1e4  # saturates
    exact[1, 0, 0, 0] = 2.0**-9 * 0.02
    narrow = (exact / scales[:, None, None]).clamp(-448, 448).to(FP8)
    exact = narrow.float() * scales[:, None, None]
    want = OP(**x, ssm_pool=exact, ssm_indices=ints(backend, SLOTS), state_v_first=v_first)
    o = OP(**x, ssm_pool=narrow, ssm_indices=ints(backend, SLOTS), state_v_first=v_first, pool_scale=scales)
    assert torch.equal(o, want)
    assert torch.equal(narrow[SLOTS].float(), (exact[SLOTS] / scales[:, None, None]).clamp(-448, 448).to(FP8).float())


def test_refusals():
    device = type("Device", (), {"device": "cpu"})
    x, pool, scales = inputs(device, LENS), make_pool(device), torch.ones(2)
    cases = {
        "pool_scale: expected None, as the pool is not fp8": dict(pool_scale=scales),
        "pool_scale: expected": dict(ssm_pool=pool.to(FP8)),
        r"pool_scale: expected shape \[2\]": dict(ssm_pool=pool.to(FP8), pool_scale=scales[:1]),
        "rounding_seed: expected None, as the pool is not bf16": dict(rounding_seed=torch.tensor([1])),
        "rounding_seed: expected int64": dict(ssm_pool=pool.bfloat16(), rounding_seed=torch.tensor([1], dtype=torch.int32)),
    }
    for text, wrong in cases.items():
        with pytest.raises(RuntimeError, match=f"gdn.chunk_gated_delta_rule_update: (.*; )?{text}"):
            OP(**x | dict(ssm_pool=pool, ssm_indices=ints(device, SLOTS)) | wrong)
