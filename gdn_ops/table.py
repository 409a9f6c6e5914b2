"""The table: one row per operator. Build, registration, tracing, tests, benchmarks and README read it.

An op exists because it has a row here; a kernel exists because a row names it.
"""

from gdn_ops.kernels import (
    CHUNK_BK,
    CHUNK_PREP,
    CHUNK_REC,
    CONV,
    FUSED_RECURRENT,
    FUSED_RECURRENT_RING,
    FUSED_RECURRENT_STEP,
    FUSED_RECURRENT_VERIFY,
    GATED_RMSNORM,
    GDN_DECODE_STEP,
    MOVE_SLOTS,
    PREPARE_CHUNK_OFFSETS,
)
from gdn_ops.spec import FLOAT, HALF, Kernel, Op, Out

TABLE = (
    Op(
        name="l2norm",
        schema="(Tensor x, float eps=1e-6) -> Tensor",
        shapes={"x": "... D"},
        outputs=(Out("y", like="x"),),
        dtypes="bf16 fp16 fp32",
        replaces="FLA l2norm",
        kernels=(
            Kernel(
                name="l2norm",
                source="csrc/cuda/l2norm.cu",
                keys={"T": FLOAT, "ALIGNED": (True, False)},
                tune=lambda v, arch: dict(warps=4, THREADS=128, U=4 if v["T"] != "fp32" else 2),
                tiles=("THREADS", "U"),
                hot=True,
            ),
        ),
    ),
    Op(
        name="causal_conv1d_fn",
        schema="(Tensor x, Tensor weight, Tensor? bias=None, Tensor(a!)? conv_states=None, Tensor? query_start_loc=None,"
        " Tensor? cache_indices=None, Tensor? has_initial_state=None, SymInt activation=0, SymInt min_slot=0,"
        " Tensor? seq_idx=None, bool channels_first=False, Tensor(b!)? checkpoints=None, SymInt checkpoint_every=0,"
        " Tensor? checkpoint_indices=None, Tensor? prefix_lens=None, SymInt H=0, SymInt K=0) -> Tensor",
        shapes={"weight": "D W"},
        outputs=(
            Out(
                "y",
                like="x",
                resized=lambda args: (-2 if args["channels_first"] else -1, args["weight"].shape[0]),
                swapped=lambda args: args["channels_first"] and args["x"].stride(-2) == 1,
            ),
        ),
        dtypes="bf16 fp16 fp32",
        out=True,
        replaces="causal_conv1d_fn of Dao-AILab, LightLLM, SGLang, vLLM, FastDeploy",
        kernels=(CONV,),
    ),
    Op(
        name="causal_conv1d_update",
        schema="(Tensor x, Tensor(a!) conv_state, Tensor weight, Tensor? bias=None, SymInt activation=0,"
        " Tensor? conv_state_indices=None, Tensor? num_accepted_tokens=None, Tensor? query_start_loc=None,"
        " Tensor(b!)? intermediate_windows=None, Tensor? intermediate_indices=None, Tensor? parents=None, SymInt min_slot=0,"
        " Tensor? cache_seqlens=None, SymInt H=0, SymInt K=0) -> Tensor",
        shapes={"weight": "D W"},
        outputs=(
            Out(
                "y",
                like="x",
                resized=lambda args: (1, args["weight"].shape[0]),
                swapped=lambda args: args["x"].dim() == 3 and args["x"].stride(-2) == 1,
            ),
        ),
        dtypes="bf16 fp16 fp32",
        out=True,
        replaces="causal_conv1d_update of Dao-AILab, LightLLM, SGLang, vLLM, FastDeploy, transformers",
        kernels=(CONV,),
    ),
    Op(
        name="fused_gdn_gating",
        schema="(Tensor A_log, Tensor a, Tensor b, Tensor dt_bias, float softplus_beta=1.0, float softplus_threshold=20.0)"
        " -> (Tensor, Tensor)",
        shapes={"a": "... HV"},
        outputs=(Out("g", like="a", dtype="fp32"), Out("beta", like="a", dtype="fp32")),
        dtypes="bf16 fp16 fp32",
        out=True,
        replaces="LightLLM, SGLang, FastDeploy fused_gdn_gating",
        kernels=(
            Kernel(
                name="fused_gdn_gating",
                source="triton_src/fused_gdn_gating.py",
                keys={"T": HALF},
                tune=lambda v, arch: dict(warps=4, stages=1, BR=32, BH=32),
                tiles=("BR", "BH"),
            ),
        ),
    ),
    Op(
        name="conv_pack_gdn_decode_inputs",
        schema="(Tensor mixed_qkv, Tensor z, Tensor a, Tensor b, Tensor(a!) conv_states, Tensor weight, Tensor? bias,"
        " Tensor cache_indices, SymInt activation, SymInt H, SymInt K, SymInt HV, SymInt V, SymInt min_slot=0)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        shapes={"mixed_qkv": "B D"},
        outputs=(
            Out("q", "B 1 H K", "mixed_qkv"),
            Out("k", "B 1 H K", "mixed_qkv"),
            Out("v", "B 1 HV V", "mixed_qkv"),
            Out("z", "B HV V", "z"),
            Out("a", "B HV", "a"),
            Out("b", "B HV", "b"),
        ),
        dtypes="bf16 fp16 fp32",
        out=True,
        replaces="LightLLM conv_pack_gdn_decode_inputs",
        kernels=(
            Kernel(
                name="conv_pack_gdn_decode_inputs",
                source="csrc/cuda/conv_pack_gdn_decode_inputs.cu",
                keys={"T": FLOAT, "W": (2, 3, 4), "VEC": (4, 1)},
                where=lambda v: v["VEC"] == 1 or v["T"] != "fp32" and v["W"] == 4,
                tune=lambda v, arch: dict(warps=4, THREADS=128),
                tiles=("THREADS",),
                hot=True,
                early=True,
            ),
        ),
    ),
    Op(
        name="split_qkvzba",
        schema="(Tensor mixed, Tensor? ba, SymInt H, SymInt HV, SymInt K, SymInt V, bool interleaved=False)"
        " -> (Tensor, Tensor, Tensor, Tensor)",
        shapes={"mixed": "T W"},
        outputs=(
            Out("qkv", "T D", "mixed"),
            Out("z", "T HV V", "mixed"),
            Out("b", "T HV", "ba mixed"),
            Out("a", "T HV", "ba mixed"),
        ),
        dtypes="bf16 fp16 fp32",
        replaces="fused_qkvzba_split_reshape_cat of SGLang and vLLM, fix_query_key_value_ordering of transformers",
        kernels=(
            Kernel(
                name="split_qkvzba",
                source="csrc/cuda/split_qkvzba.cu",
                tune=lambda v, arch: dict(warps=8, THREADS=256, U=4),
                tiles=("THREADS", "U"),
                hot=True,
            ),
        ),
    ),
    Op(
        name="fused_post_conv_prep",
        schema="(Tensor qkv, Tensor a, Tensor b, Tensor A_log, Tensor dt_bias, SymInt H, SymInt K, SymInt V, bool use_qk_l2norm=True,"
        " bool output_g_exp=False) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        shapes={"qkv": "T D", "A_log": "HV"},
        outputs=(
            Out("q", "T H K", "qkv"),
            Out("k", "T H K", "qkv"),
            Out("v", "T HV V", "qkv"),
            Out("g", "T HV", "fp32"),
            Out("beta", "T HV", "fp32"),
        ),
        dtypes="bf16 fp16 fp32",
        replaces="vLLM fused_post_conv_prep, TensorRT-LLM fused_gdn_post_conv",
        kernels=(
            Kernel(
                name="fused_post_conv_prep",
                source="csrc/cuda/fused_post_conv_prep.cu",
                keys={"T": FLOAT, "ALIGNED": (True, False)},
                tune=lambda v, arch: dict(warps=8, THREADS=256, WARPS=8, U=4 if v["ALIGNED"] else 1),
                tiles=("THREADS", "WARPS", "U"),
                hot=True,
            ),
        ),
    ),
    Op(
        name="gated_rmsnorm",
        schema="(Tensor x, Tensor weight, Tensor? z=None, float eps=1e-6, SymInt activation=1, bool norm_before_gate=True,"
        " SymInt group_size=0, bool hf_rounding=False, Tensor? out_scale=None) -> Tensor",
        shapes={"x": "... D"},
        outputs=(Out("y", like="x", dtype=lambda args: "x" if args["out_scale"] is None else "fp8"),),
        dtypes="bf16 fp16 fp32",
        out=True,
        replaces="the gated RMSNorm of FLA, LightLLM, SGLang, vLLM, transformers",
        kernels=(GATED_RMSNORM,),
    ),
    Op(
        name="gated_rmsnorm_fp8",
        schema="(Tensor x, Tensor weight, Tensor? z=None, float eps=1e-6, SymInt activation=1, bool norm_before_gate=True,"
        " SymInt group_size=0, bool hf_rounding=False, SymInt quant_group=0) -> (Tensor, Tensor)",
        shapes={"x": "... D"},
        outputs=(
            Out("y", like="x", dtype="fp8"),
            Out(
                "scales",
                like="x",
                dtype="fp32",
                resized=lambda args: (-1, args["x"].shape[-1] // (args["quant_group"] or args["group_size"] or args["x"].shape[-1])),
            ),
        ),
        dtypes="bf16 fp16 fp32",
        out=True,
        replaces="the gated RMSNorm of SGLang and vLLM and the per-token-group fp8 quantisation after it",
        kernels=(GATED_RMSNORM,),
    ),
    Op(
        name="chunk_local_cumsum",
        schema="(Tensor g, SymInt chunk_size, bool reverse=False, float? scale=None, Tensor? cu_seqlens=None) -> Tensor",
        shapes={"g": "..."},
        outputs=(Out("y", like="g", dtype="fp32"),),
        dtypes="bf16 fp16 fp32",
        replaces="FLA chunk_local_cumsum",
        kernels=(
            Kernel(
                name="chunk_local_cumsum",
                source="triton_src/chunk_local_cumsum.py",
                keys={"BT": (16, 32, 64, 128)},
                tune=lambda v, arch: dict(warps=4, stages=1, BM=32),
                tiles=("BM",),
            ),
        ),
    ),
    Op(
        name="chunk_scaled_dot_kkt",
        schema="(Tensor k, Tensor? g=None, Tensor? beta=None, Tensor? cu_seqlens=None, SymInt chunk_size=64, float? gate_base=None)"
        " -> Tensor",
        shapes={"k": "B T H K", "beta": "B T HV", "g": "B T HV"},
        outputs=(Out("A", "B T HV C", "fp32"),),
        replaces="FLA chunk_scaled_dot_kkt_fwd",
        kernels=(
            Kernel(
                name="chunk_scaled_dot_kkt",
                source="triton_src/chunk_scaled_dot_kkt.py",
                keys={"T": HALF, "ALIGNED": (True, False)},
                tune=lambda v, arch: dict(warps=4, stages=2, BT=64, BK=64),
            ),
        ),
    ),
    Op(
        name="chunk_kkt_solve",
        schema="(Tensor k, Tensor? g=None, Tensor? beta=None, Tensor? cu_seqlens=None, SymInt chunk_size=64, float? gate_base=None)"
        " -> Tensor",
        shapes={"k": "B T H K", "beta": "B T HV", "g": "B T HV"},
        outputs=(Out("Ai", "B T HV C", "k"),),
        replaces="FLA chunk_scaled_dot_kkt_fwd with solve_tril",
        kernels=(
            Kernel(
                name="chunk_kkt_solve",
                source="triton_src/chunk_kkt_solve.py",
                keys={"T": HALF, "ALIGNED": (True, False)},
                tune=lambda v, arch: dict(warps=4, stages=2, BT=64, BK=64),
            ),
        ),
    ),
    Op(
        name="solve_tril",
        schema="(Tensor A, Tensor? cu_seqlens=None, ScalarType? output_dtype=None) -> Tensor",
        shapes={"A": "B T H C"},
        outputs=(Out("Ai", like="A", dtype="output_dtype"),),
        dtypes="bf16 fp16 fp32",
        replaces="FLA solve_tril",
        kernels=(Kernel(name="solve_tril", source="triton_src/solve_tril.py", tune=lambda v, arch: dict(warps=4, stages=1, BT=64)),),
    ),
    Op(
        name="recompute_w_u",
        schema="(Tensor k, Tensor v, Tensor beta, Tensor A, Tensor? g=None, Tensor? cu_seqlens=None, float? gate_base=None) -> (Tensor, Tensor)",
        shapes={"k": "B T H K", "v": "B T HV V", "A": "B T HV BT"},
        outputs=(Out("w", "B T HV K", "k"), Out("u", "B T HV V", "k")),
        replaces="FLA recompute_w_u_fwd",
        kernels=(
            Kernel(
                name="recompute_w_u",
                source="triton_src/recompute_w_u.py",
                keys={"T": HALF, "BT": (16, 32, 64), "ALIGNED": (True, False)},
                where=lambda v: v["BT"] == 64 or not v["ALIGNED"],
                tune=lambda v, arch: dict(warps=4 if v["ALIGNED"] or v["BT"] < 64 else 8, stages=2, BN=64),
            ),
        ),
    ),
    Op(
        name="fused_recurrent_gated_delta_rule",
        schema="(Tensor q, Tensor k, Tensor v, Tensor? g=None, Tensor? beta=None, float? scale=None, Tensor? initial_state=None, "
        "bool output_final_state=False, Tensor? cu_seqlens=None, bool use_qk_l2norm_in_kernel=False, bool state_v_first=False) "
        "-> (Tensor, Tensor)",
        shapes={"q": "B T H K", "v": "B T HV V"},
        outputs=(
            Out("o", "B T HV V", dtype="q"),
            Out("final_state", "N HV S0 S1", dtype="fp32", when="output_final_state"),
        ),
        dtypes="bf16 fp16 fp32",
        replaces="FLA fused_recurrent_gated_delta_rule",
        kernels=(FUSED_RECURRENT, FUSED_RECURRENT_STEP, FUSED_RECURRENT_VERIFY),
    ),
    Op(
        name="fused_recurrent_gated_delta_rule_update",
        schema="(Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? beta, Tensor? A_log, Tensor? a, Tensor? dt_bias, Tensor? b, "
        "Tensor(a!) ssm_pool, Tensor ssm_indices, Tensor? ssm_write_indices=None, Tensor? num_accepted_tokens=None, "
        "Tensor? cu_seqlens=None, Tensor(b!)? intermediate_states=None, Tensor? intermediate_indices=None, Tensor? parents=None, "
        "Tensor? has_initial_state=None, bool update_state=True, float? scale=None, bool use_qk_l2norm_in_kernel=False, "
        "bool state_v_first=False, SymInt min_slot=0, Tensor? pool_scale=None, Tensor? rounding_seed=None) -> Tensor",
        shapes={"q": "B T H K", "v": "B T HV V"},
        outputs=(Out("o", "B T HV V", dtype="q"),),
        dtypes="bf16 fp16 fp32",
        out=True,
        replaces="SGLang and vLLM fused_sigmoid_gating_delta_rule_update, LightLLM and FastDeploy fused_recurrent_gated_delta_rule",
        kernels=(FUSED_RECURRENT, FUSED_RECURRENT_STEP, FUSED_RECURRENT_VERIFY),
    ),
    Op(
        name="fused_recurrent_gated_delta_rule_packed_decode",
        schema="(Tensor mixed_qkv, Tensor a, Tensor b, Tensor A_log, Tensor dt_bias, float? scale, Tensor(a!) ssm_pool, "
        "Tensor(b!) out, Tensor ssm_indices, bool use_qk_l2norm_in_kernel=False, bool state_v_first=False, SymInt min_slot=0, "
        "Tensor? pool_scale=None, Tensor? rounding_seed=None) -> ()",
        shapes={"mixed_qkv": "B D"},
        outputs=(),
        dtypes="bf16 fp16 fp32",
        replaces="SGLang and vLLM fused_recurrent_gated_delta_rule_packed_decode",
        kernels=(FUSED_RECURRENT, FUSED_RECURRENT_STEP, FUSED_RECURRENT_VERIFY),
    ),
    Op(
        name="fused_recurrent_gated_delta_rule_ring",
        schema="(Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? beta, Tensor? A_log, Tensor? a, Tensor? dt_bias, Tensor? b, "
        "Tensor(a!) ssm_pool, Tensor(b!) ring_k, Tensor(c!) ring_u, Tensor(d!) ring_g, Tensor ring_lengths, Tensor ssm_indices, "
        "Tensor? cu_seqlens=None, float? scale=None, bool use_qk_l2norm_in_kernel=False, bool state_v_first=False, "
        "SymInt min_slot=0) -> Tensor",
        shapes={"q": "B T H K", "v": "B T HV V"},
        outputs=(Out("o", "B T HV V", dtype="q"),),
        dtypes="bf16 fp16 fp32",
        out=True,
        replaces="a state store every token in decode, one every draft token in verify",
        kernels=(FUSED_RECURRENT_RING,),
    ),
    Op(
        name="advance_rings",
        schema="(Tensor(a!) ring_lengths, Tensor ssm_indices, SymInt ring_size, SymInt? tokens=None, "
        "Tensor? num_accepted_tokens=None, Tensor? cu_seqlens=None, SymInt min_slot=0) -> ()",
        shapes={"ssm_indices": "N"},
        outputs=(),
        dtypes="int32 int64",
        replaces="the copying of accepted states after verify",
        kernels=(
            Kernel(
                name="advance_rings",
                source="csrc/cuda/advance_rings.cu",
                tune=lambda v, arch: dict(warps=8, THREADS=256),
                tiles=("THREADS",),
                hot=True,
            ),
        ),
    ),
    Op(
        name="commit_accepted",
        schema="(Tensor(a!) ssm_pool, Tensor ring_k, Tensor ring_u, Tensor ring_g, Tensor num_entries, Tensor ssm_indices, "
        "bool state_v_first=False, SymInt min_slot=0) -> ()",
        shapes={"ring_k": "slots R H K", "ring_u": "slots R HV V"},
        outputs=(),
        dtypes="bf16 fp16 fp32",
        replaces="the copying of accepted states after verify",
        kernels=(FUSED_RECURRENT_RING,),
    ),
    Op(
        name="chunk_fwd_h",
        schema="(Tensor k, Tensor w, Tensor u, Tensor? g=None, Tensor? initial_state=None, bool output_final_state=False, "
        "SymInt chunk_size=64, bool save_new_value=True, Tensor? cu_seqlens=None, bool state_v_first=False, float? gate_base=None) "
        "-> (Tensor, Tensor, Tensor)",
        shapes={"k": "B T H K", "u": "B T HV V"},
        outputs=(
            Out("h", "B NT HV S0 S1", "k"),
            Out("v_new", "B T HV V", "k", when="save_new_value"),
            Out("final_state", "N HV S0 S1", "fp32", when="output_final_state"),
        ),
        replaces="FLA chunk_gated_delta_rule_fwd_h",
        kernels=(
            Kernel(
                name="chunk_fwd_h",
                source="triton_src/chunk_fwd_h.py",
                keys={"T": HALF, "BT": (16, 32, 64), "BK": (64, 128, 256), "ALIGNED": (True, False)},
                where=lambda v: (v["BT"], v["ALIGNED"], v["BK"]) in CHUNK_BK,
                tune=lambda v, arch: dict(
                    warps=4, stages=(3 if arch in (90, 100, 103) else 2) if v["ALIGNED"] else 1, BV=16 if v["BK"] == 256 else 32
                ),
                tiles=("BV",),
            ),
        ),
    ),
    Op(
        name="chunk_fwd_o",
        schema="(Tensor q, Tensor k, Tensor v, Tensor h, Tensor? g=None, float? scale=None, Tensor? cu_seqlens=None, "
        "SymInt chunk_size=64, bool state_v_first=False, float? gate_base=None) -> Tensor",
        shapes={"q": "B T H K", "v": "B T HV V"},
        outputs=(Out("o", "B T HV V", "q"),),
        replaces="FLA chunk_fwd_o",
        kernels=(
            Kernel(
                name="chunk_fwd_o",
                source="triton_src/chunk_fwd_o.py",
                keys={"T": HALF, "BT": (16, 32, 64), "V_FIRST": (True, False), "ALIGNED": (True, False)},
                where=lambda v: v["BT"] == 64 if v["ALIGNED"] else not v["V_FIRST"],
                tune=lambda v, arch: dict(warps=4, stages=2, BK=64, BV=64),
                tiles=("BV",),
            ),
        ),
    ),
    Op(
        name="chunk_gated_delta_rule",
        schema="(Tensor q, Tensor k, Tensor v, Tensor? g=None, Tensor? beta=None, float? scale=None, Tensor? initial_state=None, "
        "bool output_final_state=False, Tensor? cu_seqlens=None, bool use_qk_l2norm_in_kernel=False, bool state_v_first=False) "
        "-> (Tensor, Tensor)",
        shapes={"q": "B T H K", "k": "B T H K", "v": "B T HV V", "g": "B T HV", "beta": "B T HV", "initial_state": "N HV S0 S1"},
        outputs=(
            Out("o", "B T HV V", "q"),
            Out("final_state", "N HV S0 S1", "fp32", when="output_final_state"),
        ),
        dtypes="bf16 fp16 (fp32 on the CPU)",
        replaces="chunk_gated_delta_rule of FLA, LightLLM, vLLM, FlashQLA, transformers",
        kernels=(CHUNK_PREP, CHUNK_REC),
    ),
    Op(
        name="chunk_gated_delta_rule_update",
        schema="(Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? beta, Tensor(a!) ssm_pool, Tensor ssm_indices, "
        "Tensor? has_initial_state=None, Tensor? cu_seqlens=None, float? scale=None, bool use_qk_l2norm_in_kernel=False, "
        "bool state_v_first=False, bool write_state=True, Tensor(b!)? checkpoints=None, SymInt checkpoint_every=64, "
        "Tensor? checkpoint_indices=None, Tensor? prefix_lens=None, SymInt min_slot=0, Tensor? pool_scale=None, "
        "Tensor? rounding_seed=None) -> Tensor",
        shapes={"q": "B T H K", "k": "B T H K", "v": "B T HV V", "g": "B T HV", "beta": "B T HV"},
        outputs=(Out("o", "B T HV V", "q"),),
        dtypes="bf16 fp16 (fp32 on the CPU)",
        out=True,
        replaces="in-place prefill of SGLang, FastDeploy, TensorRT-LLM; prefix caching in vLLM and SGLang",
        kernels=(CHUNK_PREP, CHUNK_REC, FUSED_RECURRENT),
    ),
    Op(
        name="prepare_lens",
        schema="(Tensor cu_seqlens) -> Tensor",
        shapes={"cu_seqlens": "N1"},
        outputs=(Out("lens", "N", "cu_seqlens"),),
        dtypes="int32 int64",
        replaces="FLA prepare_lens",
        kernels=(
            Kernel(
                name="prepare_lens",
                source="triton_src/prepare_lens.py",
                tune=lambda v, arch: dict(warps=4, stages=1, BN=512),
                tiles=("BN",),
            ),
        ),
    ),
    Op(
        name="prepare_chunk_offsets",
        schema="(Tensor cu_seqlens, SymInt chunk_size) -> Tensor",
        shapes={"cu_seqlens": "N1"},
        outputs=(Out("offsets", "N1", "cu_seqlens"),),
        dtypes="int32 int64",
        replaces="FLA prepare_chunk_offsets",
        kernels=(PREPARE_CHUNK_OFFSETS,),
    ),
    Op(
        name="prepare_chunk_indices",
        schema="(Tensor cu_seqlens, SymInt chunk_size, SymInt total_tokens) -> Tensor",
        shapes={"cu_seqlens": "N1"},
        outputs=(Out("indices", "NT 2", "cu_seqlens"),),
        dtypes="int32 int64",
        replaces="FLA prepare_chunk_indices",
        kernels=(
            PREPARE_CHUNK_OFFSETS,
            Kernel(
                name="prepare_chunk_indices",
                source="triton_src/prepare_chunk_indices.py",
                tune=lambda v, arch: dict(warps=4, stages=1, BR=512),
                tiles=("BR",),
            ),
        ),
    ),
    Op(
        name="copy_slots",
        schema="(Tensor(a!) pool, Tensor src_indices, Tensor dst_indices, Tensor? mask=None, SymInt min_slot=0, SymInt slot_dim=1) -> ()",
        shapes={"src_indices": "N"},
        outputs=(),
        dtypes="bf16 fp16 fp32 fp8",
        replaces="LightLLM copy_mamba_buffer and fork_mamba_buffer, SGLang track_mamba_states_if_needed",
        kernels=(MOVE_SLOTS,),
    ),
    Op(
        name="zero_slots",
        schema="(Tensor(a!) pool, Tensor indices, Tensor? mask=None, SymInt min_slot=0, SymInt slot_dim=1) -> ()",
        shapes={"indices": "N"},
        outputs=(),
        dtypes="bf16 fp16 fp32 fp8",
        replaces="pool[:, indices] = 0 of LightLLM, SGLang, vLLM",
        kernels=(MOVE_SLOTS,),
    ),
    Op(
        name="gather_states",
        schema="(Tensor pool, Tensor indices, Tensor? has_initial_state=None, ScalarType? output_dtype=None, SymInt min_slot=0,"
        " SymInt slot_dim=1) -> Tensor",
        shapes={"indices": "N"},
        outputs=(Out("states", like="pool", dtype="output_dtype", resized=lambda args: (args["slot_dim"], args["indices"].shape[0])),),
        dtypes="bf16 fp16 fp32 fp8",
        replaces="pool[:, indices] and the masking after it of vLLM, LightLLM, FastDeploy",
        kernels=(MOVE_SLOTS,),
    ),
    Op(
        name="scatter_states",
        schema="(Tensor(a!) pool, Tensor states, Tensor indices, Tensor? mask=None, SymInt min_slot=0, SymInt slot_dim=1) -> ()",
        shapes={"indices": "N"},
        outputs=(),
        dtypes="bf16 fp16 fp32 fp8",
        replaces="pool[:, indices] = states of vLLM, LightLLM; SGLang copy_mamba_state_rows",
        kernels=(MOVE_SLOTS,),
    ),
    Op(
        name="scatter_accepted_states",
        schema="(Tensor(a!) pool, Tensor intermediate_states, Tensor ssm_indices, Tensor num_accepted_tokens,"
        " Tensor? intermediate_indices=None, SymInt min_slot=0, SymInt slot_dim=1) -> ()",
        shapes={"ssm_indices": "N"},
        outputs=(),
        dtypes="bf16 fp16 fp32 fp8",
        replaces="SGLang fused_mamba_state_scatter_with_mask and fused_conv_window_scatter_with_mask",
        kernels=(MOVE_SLOTS,),
    ),
    Op(
        name="gdn_prefill",
        schema="(Tensor mixed_qkvz, Tensor? ba, Tensor(a!) conv_states, Tensor(b!) ssm_pool, Tensor cache_indices, "
        "Tensor has_initial_state, Tensor? cu_seqlens, Tensor conv_weight, Tensor? conv_bias, Tensor A_log, Tensor dt_bias, "
        "Tensor norm_weight, float eps=1e-6, float? scale=None, SymInt activation=1, bool use_qk_l2norm_in_kernel=True, "
        "bool state_v_first=False, bool interleaved=False, SymInt norm_activation=1, bool norm_before_gate=True, "
        "bool hf_rounding=False, Tensor? out_scale=None, Tensor? ssm_indices=None, Tensor(c!)? ssm_checkpoints=None, "
        "Tensor(d!)? conv_checkpoints=None, SymInt checkpoint_every=64, Tensor? checkpoint_indices=None, "
        "Tensor? prefix_lens=None, SymInt min_slot=0, bool write_state=True, Tensor? pool_scale=None, "
        "Tensor? rounding_seed=None) -> Tensor",
        shapes={"A_log": "HV", "norm_weight": "V"},
        outputs=(Out("y", "*mixed_qkvz HV V", dtype=lambda args: "mixed_qkvz" if args["out_scale"] is None else "fp8"),),
        dtypes="bf16 fp16 (fp32 on the CPU)",
        out=True,
        replaces="the calls of every engine between a layer's projections, in prefill",
    ),
    Op(
        name="gdn_decode",
        schema="(Tensor mixed_qkvz, Tensor? ba, Tensor(a!) conv_states, Tensor(b!) ssm_pool, Tensor cache_indices, "
        "Tensor conv_weight, Tensor? conv_bias, Tensor A_log, Tensor dt_bias, Tensor norm_weight, float eps=1e-6, "
        "float? scale=None, SymInt activation=1, bool use_qk_l2norm_in_kernel=True, bool state_v_first=False, "
        "bool interleaved=False, SymInt norm_activation=1, bool norm_before_gate=True, bool hf_rounding=False, "
        "Tensor? out_scale=None, Tensor? cu_seqlens=None, Tensor? ssm_indices=None, Tensor? ssm_write_indices=None, "
        "Tensor? num_accepted_tokens=None, Tensor(c!)? intermediate_states=None, Tensor(d!)? intermediate_windows=None, "
        "Tensor? intermediate_indices=None, Tensor? parents=None, bool update_state=True, SymInt min_slot=0, "
        "Tensor? pool_scale=None, Tensor? rounding_seed=None) -> Tensor",
        shapes={"A_log": "HV", "norm_weight": "V"},
        outputs=(Out("y", "*mixed_qkvz HV V", dtype=lambda args: "mixed_qkvz" if args["out_scale"] is None else "fp8"),),
        dtypes="bf16 fp16 fp32",
        out=True,
        replaces="the calls of every engine between a layer's projections, in decode and verify; vLLM fused_gdn_decode_post_conv_mtp",
        kernels=(GDN_DECODE_STEP,),
    ),
)

OPS = {op.name: op for op in TABLE}
KERNELS = {kernel.name: kernel for op in TABLE for kernel in op.kernels}
