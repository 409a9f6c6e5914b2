"""Convolutions over time."""

import torch

from gdn_ops.reference.base import F64, sequences


def flat_channels(x: torch.Tensor, H: int, K: int, D: int) -> torch.Tensor:
    """Channels ``[q | k | v]`` of rows ``[.., H groups of [q K | k K | v V | z V]]``; of any rows where H is 0."""
    if H == 0:
        return x
    V = D // H - 2 * K
    q, k, v, _ = x.unflatten(-1, (H, 2 * K + 2 * V)).split([K, K, V, V], -1)
    return torch.cat([part.flatten(-2) for part in (q, k, v)], -1)


def _result(window, weight, bias, activation) -> torch.Tensor:
    """One token from its W inputs ``[D, W]``."""
    y = (window * weight).sum(-1) + (0 if bias is None else bias.detach().to("cpu", F64))
    return torch.nn.functional.silu(y) if activation else y


def causal_conv1d_fn(
    x, weight, bias=None, conv_states=None, query_start_loc=None, cache_indices=None, has_initial_state=None, activation=0,
    min_slot=0, seq_idx=None, channels_first=False, checkpoints=None, checkpoint_every=0, checkpoint_indices=None, prefix_lens=None,
    H=0, K=0,
):  # fmt: skip
    """y, and the new states (and checkpoints where given). Every sequence's inputs are convolved as one line with its history,
    which is the first W - 1 columns of its state with ``cache_indices``, else the last."""
    x, weight = x.detach().to("cpu", F64), weight.detach().to("cpu", F64)
    x = flat_channels(x.mT if channels_first else x, H, K, len(weight))
    rows, past = x if x.dim() == 3 else x[None], weight.shape[1] - 1
    if seq_idx is not None:
        y, _ = torch.zeros_like(rows), None
        for b, row in enumerate(seq_idx.tolist()):
            starts = [t for t in range(len(row)) if t == 0 or row[t] != row[t - 1]] + [len(row)]
            for start, end in zip(starts, starts[1:]):
                if row[start] >= 0:
                    y[b, start:end] = causal_conv1d_fn(rows[b, start:end], weight, bias, activation=activation)[0]
        y = y if x.dim() == 3 else y[0]
        return (y.mT if channels_first else y), None
    y, new = torch.zeros_like(rows), None if conv_states is None else conv_states.detach().to("cpu", F64, copy=True)
    kept = None if checkpoints is None else checkpoints.detach().to("cpu", F64, copy=True)
    for n, (b, start, end) in enumerate(sequences(*rows.shape[:2], query_start_loc)):
        slot = n if cache_indices is None else int(cache_indices[n])
        if start == end or cache_indices is not None and not min_slot <= slot < len(new):
            continue
        columns = past if new is None or cache_indices is not None else new.shape[2]
        line = torch.zeros(rows.shape[2], columns, dtype=F64)
        if new is not None and has_initial_state is not None and has_initial_state[n]:
            line = conv_states.detach().to("cpu", F64)[slot, :, :columns]
        line = torch.cat([line, rows[b, start:end].T], 1)
        windows = line[:, columns - past :].unfold(1, past + 1, 1)  # [D, L, W]
        y[b, start:end] = _result(windows.transpose(0, 1), weight, bias, activation)
        if new is not None:
            new[slot, :, :columns] = line[:, line.shape[1] - columns :]
        if kept is not None:
            prefix = 0 if prefix_lens is None else int(prefix_lens[n])
            multiples = [p for p in range(prefix + 1, prefix + end - start + 1) if p % checkpoint_every == 0]
            for p, to in zip(multiples, checkpoint_indices[n].tolist()):
                if min_slot <= to < len(kept):
                    kept[to] = windows[:, p - prefix - 1, 1:]
    y = y if x.dim() == 3 else y[0]
    y = y.mT if channels_first else y
    return (y, new) if kept is None else (y, new, kept)


def causal_conv1d_update(
    x, conv_state, weight, bias=None, activation=0, conv_state_indices=None, num_accepted_tokens=None, query_start_loc=None,
    intermediate_windows=None, intermediate_indices=None, parents=None, min_slot=0, cache_seqlens=None, H=0, K=0,
):  # fmt: skip
    """y, and the new states (and windows where given), token by token: the inputs a token sees are a list that ends with it."""
    x, weight = x.detach().to("cpu", F64), weight.detach().to("cpu", F64)
    rows = x[None] if query_start_loc is not None else x[:, None] if x.dim() == 2 else x.mT  # [B, T, D]
    rows = flat_channels(rows, H, K, len(weight))
    new, past = conv_state.detach().to("cpu", F64, copy=True), weight.shape[1] - 1
    kept = None if intermediate_windows is None else intermediate_windows.detach().to("cpu", F64, copy=True)
    y, old, L = torch.zeros_like(rows), new.clone(), new.shape[2]
    for n, (b, start, end) in enumerate(sequences(*rows.shape[:2], query_start_loc)):
        slot, inputs = n if conv_state_indices is None else int(conv_state_indices[n]), list(rows[b, start:end])
        accepted = 1 if num_accepted_tokens is None else int(num_accepted_tokens[n])
        position = 0 if cache_seqlens is None else int(cache_seqlens[n])
        tree = [t - 1 for t in range(len(inputs))]
        room = [len(inputs)]
        if parents is not None:
            tree = [p if 0 <= p < t else -1 for t, p in enumerate(parents[n, : len(inputs)].tolist())]
            room.append(parents.shape[1])
        if num_accepted_tokens is not None:
            room.append(L - past + 1)
        if kept is not None:
            room.append(kept.shape[1])
        live = (conv_state_indices is None or min_slot <= slot < len(new)) and len(inputs) == min(room) and position >= 0
        if not (live and 1 <= accepted <= L - past + 1) or not inputs:
            continue

        if cache_seqlens is not None:
            history = [old[slot, :, (position - past + i) % L] for i in range(past)]
        elif num_accepted_tokens is not None or conv_state_indices is not None:
            history = [old[slot, :, accepted - 1 + i] for i in range(past)]
        else:
            history = [old[slot, :, L - past + i] for i in range(past)]
        for t in range(len(inputs)):
            path, node = [], t
            while node >= 0:
                path, node = [inputs[node], *path], tree[node]
            window = torch.stack([*history, *path][-past - 1 :], -1)
            y[b, start + t] = _result(window, weight, bias, activation)
            to = n if intermediate_indices is None else int(intermediate_indices[n])
            if kept is not None and 0 <= to < len(kept):
                kept[to, t] = window[:, 1:]
        if kept is not None:
            continue
        if cache_seqlens is not None:
            for t, value in enumerate(inputs):
                new[slot, :, (position + t) % L] = value
        elif num_accepted_tokens is not None:
            line = torch.stack([*history[1:], *inputs], -1)
            new[slot, :, : line.shape[1]] = line
        else:
            columns = L if conv_state_indices is None else past
            line = torch.cat([old[slot, :, :columns], torch.stack(inputs, -1)], -1)
            new[slot, :, :columns] = line[:, -columns:]
    y = y[0] if query_start_loc is not None else y[:, 0] if x.dim() == 2 else y.mT
    return (y, new) if kept is None else (y, new, kept)


def conv_pack_gdn_decode_inputs(
    mixed_qkv, z, a, b, conv_states, weight, bias, cache_indices, activation, H, K, HV, V, min_slot=0
):  # fmt: skip
    """q, k, v, z, a, b, and the new states."""
    y, new = causal_conv1d_update(mixed_qkv, conv_states, weight, bias, activation, cache_indices, min_slot=min_slot)
    live = torch.tensor([min_slot <= slot < len(new) for slot in cache_indices.tolist()], dtype=F64)[:, None]
    q, k, v = y.split([H * K, H * K, HV * V], -1)
    z, a, b = (torch.where(live > 0, t.detach().to("cpu", F64).flatten(1), 0.0) for t in (z, a, b))
    return q.view(-1, 1, H, K), k.view(-1, 1, H, K), v.view(-1, 1, HV, V), z.view(-1, HV, V), a, b, new
