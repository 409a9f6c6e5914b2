"""prepare_lens, prepare_chunk_offsets and prepare_chunk_indices against their definitions."""

import pytest
import torch
from harness import guarded, seeded

import gdn_ops
from gdn_ops import reference

LENGTHS = [(), (0,), (5,), (0, 0, 5, 0, 65, 0), (64, 64, 128), (1,) * 40, (300, 0, 17)]


def offsets(lengths, device="cpu", dtype=torch.int64):
    return guarded(torch.tensor((0, *lengths)).cumsum(0).to(dtype), device)


def check(cu, C, total):
    """All three, for whatever cu_seqlens holds."""
    for got, want in (
        (gdn_ops.prepare_lens(cu), reference.prepare_lens(cu)),
        (gdn_ops.prepare_chunk_offsets(cu, C), reference.prepare_chunk_offsets(cu, C)),
        (gdn_ops.prepare_chunk_indices(cu, C, total), reference.prepare_chunk_indices(cu, C, total)),
    ):
        assert got.dtype == cu.dtype and got.is_contiguous()
        assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda x: f"{len(x)}-sequences-{sum(x)}")
@pytest.mark.parametrize("C", [16, 64])
def test_values(backend, lengths, C, dtype):
    check(offsets(lengths, backend.device, dtype), C, sum(lengths) + 7)


def test_rows_in_words(backend):
    """Lengths 65, 0, 64 in chunks of 64: two chunks, none, one; then rows that no chunk needs."""
    cu = offsets((65, 0, 64), backend.device)
    assert gdn_ops.prepare_lens(cu).tolist() == [65, 0, 64]
    assert gdn_ops.prepare_chunk_offsets(cu, 64).tolist() == [0, 2, 2, 3]
    assert gdn_ops.prepare_chunk_indices(cu, 64, 129).tolist() == [[0, 0], [0, 1], [2, 0], [-1, -1], [-1, -1], [-1, -1]]


@pytest.mark.parametrize("N", [511, 512, 513, 1023, 1024, 1025, 2500])
def test_more_than_one_program(backend, N):
    lengths = torch.randint(0, 40, (N,), generator=seeded(N)).tolist()
    check(offsets(lengths, backend.device), 16, sum(lengths))


def test_70_000_sequences(native_backend):
    lengths = torch.randint(0, 3, (70_000,), generator=seeded(5)).tolist()
    check(offsets(lengths, native_backend.device, torch.int32), 64, sum(lengths))


def test_values_past_32_bits(backend):
    cu = torch.tensor([0, 2**33 + 1, 2**33 + 2, 2**40], device=backend.device)
    assert gdn_ops.prepare_lens(cu).tolist() == [2**33 + 1, 1, 2**40 - 2**33 - 2]
    assert gdn_ops.prepare_chunk_offsets(cu, 16).tolist() == [0, 2**29 + 1, 2**29 + 2, 2**36 + 2]


def test_fresh_tensors_and_one_overwritten(native_backend):
    """Nothing is remembered by address or identity, which are reused."""
    gen, buffer = seeded(7), torch.zeros(9, dtype=torch.int64, device=native_backend.device)
    for _ in range(1000 if native_backend.device == "cpu" else 200):
        lengths = torch.randint(0, 513, (8,), generator=gen)
        cu = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(native_backend.device)
        buffer.copy_(cu)
        want = reference.prepare_chunk_indices(cu, 64, 4096)
        assert torch.equal(gdn_ops.prepare_chunk_indices(cu, 64, 4096).cpu(), want)
        assert torch.equal(gdn_ops.prepare_chunk_indices(buffer, 64, 4096).cpu(), want)


def test_any_stride(backend):
    cu = torch.tensor([0, 5, 5, 100], device=backend.device)
    for dtype in (torch.int32, torch.int64):
        wide = torch.full((4, 3), 2**30, dtype=dtype, device=backend.device)
        wide[:, 1] = cu
        check(wide[:, 1], 16, 100)
    check(torch.full((3,), 9, device=backend.device)[:1].expand(6), 16, 20)
    check(wide[:1, 1], 16, 20)


def test_wrong_offsets(backend):
    """Below 0, past the tokens, backwards: clamped, and an end before its start is an empty sequence."""
    check(torch.tensor([-7, 20, 10, 10, 900], device=backend.device), 16, 50)
    check(torch.tensor([0, 100, 0, 100, 0, 100], device=backend.device), 16, 100)  # more chunks than there are rows


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: gdn_ops.prepare_lens(torch.tensor(5)), "gdn.prepare_lens: cu_seqlens: expected shape [any], got []"),
        (lambda: gdn_ops.prepare_lens(torch.zeros(0, dtype=torch.int64)), "gdn.prepare_lens: cu_seqlens: expected N + 1 entries, got [0]"),
        (lambda: gdn_ops.prepare_lens(torch.zeros(3)), "gdn.prepare_lens: cu_seqlens: expected int32 or int64, got fp32"),
        (
            lambda: gdn_ops.prepare_chunk_offsets(torch.zeros(3), 0),
            "gdn.prepare_chunk_offsets: cu_seqlens: expected int32 or int64, got fp32; chunk_size: expected at least 1, got 0",
        ),
        (
            lambda: gdn_ops.prepare_chunk_indices(torch.tensor([0, 5]), -64, -5),
            "gdn.prepare_chunk_indices: chunk_size: expected at least 1, got -64; total_tokens: expected at least 0, got -5",
        ),
    ],
    ids=range(5),
)
def test_refusals(call, text):
    with pytest.raises(RuntimeError) as e:
        call()
    assert text in str(e.value)
