"""A Gated DeltaNet layer on gdn_ops, as a model would write it: prefill over sequences, decode on pools."""

import torch
from torch import nn

import gdn_ops


class GatedDeltaNet(nn.Module):
    def __init__(self, hidden=64, H=2, HV=4, K=64, V=64, W=4, slots=5, dtype=torch.float32, state_v_first=False):
        super().__init__()
        self.H, self.HV, self.K, self.V, self.v_first = H, HV, K, V, state_v_first
        D = 2 * H * K + HV * V
        self.in_proj = nn.Linear(hidden, D + HV * V + 2 * HV, bias=False)
        self.out_proj = nn.Linear(HV * V, hidden, bias=False)
        self.conv = nn.Parameter(torch.randn(D, W) * 0.5)
        self.A_log = nn.Parameter(torch.rand(HV))
        self.dt_bias = nn.Parameter(torch.randn(HV))
        self.norm = nn.Parameter(torch.rand(V) + 0.5)
        self.to(dtype).requires_grad_(False)
        self.sizes = [D, HV * V, HV, HV]
        self.register_buffer("conv_states", torch.zeros(slots, D, W - 1, dtype=dtype))
        self.register_buffer("pool", torch.zeros(slots, HV, *((V, K) if state_v_first else (K, V))))

    def _split(self, qkv):
        q, k, v = qkv.split([self.H * self.K, self.H * self.K, self.HV * self.V], -1)
        return q.unflatten(-1, (self.H, self.K)), k.unflatten(-1, (self.H, self.K)), v.unflatten(-1, (self.HV, self.V))

    def _out(self, o, z):
        return self.out_proj(gdn_ops.gated_rmsnorm(o, self.norm, z.unflatten(-1, (self.HV, self.V))).flatten(-2))

    def forward(self, x):
        """Prefill: x [B, T, hidden] -> y, final state."""
        qkv, z, b, a = self.in_proj(x).split(self.sizes, -1)
        q, k, v = self._split(gdn_ops.causal_conv1d_fn(qkv, self.conv, activation=gdn_ops.SILU))
        g, beta = gdn_ops.fused_gdn_gating(self.A_log, a, b, self.dt_bias)
        o, state = gdn_ops.chunk_gated_delta_rule(
            q, k, v, g, beta, output_final_state=True, use_qk_l2norm_in_kernel=True, state_v_first=self.v_first
        )
        return self._out(o, z), state

    def decode(self, x, slots):
        """One token of each row on its slot of the pools: x [N, hidden] -> y."""
        qkv, z, b, a = self.in_proj(x).split(self.sizes, -1)
        qkv = gdn_ops.causal_conv1d_update(qkv, self.conv_states, self.conv, activation=gdn_ops.SILU, conv_state_indices=slots)
        q, k, v = (t.unsqueeze(1) for t in self._split(qkv))
        o = gdn_ops.fused_recurrent_gated_delta_rule_update(
            q,
            k,
            v,
            g=None,
            beta=None,
            A_log=self.A_log,
            a=a.unsqueeze(1),
            dt_bias=self.dt_bias,
            b=b.unsqueeze(1),
            ssm_pool=self.pool,
            ssm_indices=slots,
            use_qk_l2norm_in_kernel=True,
            state_v_first=self.v_first,
        )
        return self._out(o.squeeze(1), z)


class Decode(nn.Module):
    """``decode`` as a module of its own, for export."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, slots):
        return self.layer.decode(x, slots)
