"""Greedy generation with transformers' own Qwen3.5 code, its Gated DeltaNet functions on gdn_ops and on plain torch.

    python examples/generate.py [TEXT] [--prompt 1500] [--tokens 64] [--device cpu|cuda] [--dtype float32|bfloat16|float16]

A small Qwen3.5 (8 layers, 6 of them Gated DeltaNet with 4 key and 8 value heads of size 128) with seeded random weights
reads the first bytes of a text, one token per byte, and goes on for 64 tokens. Nothing is downloaded. It runs once with
transformers' torch functions and once with gdn_ops behind the same names; the tokens must be equal.

float32 (the default on the CPU) is compared strictly. In half precision two logits can lie closer together than the
rounding of either path: gdn_ops then follows torch's tokens, and another choice counts as equal only where torch's
two best logits are closer than twice the largest difference between the paths. How many there were is printed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import sys
import time
from pathlib import Path

import torch
from transformers import DynamicCache, Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.utils import logging

import gdn_ops
from gdn_ops.compat import transformers as gdn_transformers

TEXT = Path(__file__).resolve().parent.parent / "LICENSE"


def build_model(seed: int = 0) -> Qwen3_5ForCausalLM:
    config = Qwen3_5TextConfig(
        vocab_size=256,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        max_position_embeddings=1 << 16,
        initializer_range=0.05,
    )
    torch.manual_seed(seed)
    return Qwen3_5ForCausalLM(config).eval()


@contextlib.contextmanager
def timed(model: torch.nn.Module, device: torch.device):
    """Counts and times the calls of the routed functions, whoever is behind their names."""
    stats: dict[str, list[float]] = collections.defaultdict(list)
    sync = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    names = {"forward": "gated_rmsnorm", "torch_recurrent_gated_delta_rule": "fused_recurrent_gated_delta_rule"}
    kept = []

    def wrap(function, name):
        @functools.wraps(function)
        def call(*args, **kwargs):
            sync()
            start = time.perf_counter()
            result = function(*args, **kwargs)
            sync()
            stats[name].append(time.perf_counter() - start)
            return result

        return call

    for owner, name, _ in gdn_transformers.places(model):
        function = getattr(owner, name)
        kept.append((owner, name, function))
        setattr(owner, name, wrap(function, names.get(name, name.removeprefix("torch_"))))
    try:
        yield stats
    finally:
        for place in kept:
            setattr(*place)


@torch.inference_mode()
def generate(model, ids: torch.Tensor, count: int, forced: torch.Tensor | None = None):
    """Prefill, then ``count`` greedy tokens one at a time (following ``forced`` where given): tokens, logits, seconds."""
    cache, logits, tokens = DynamicCache(config=model.config), [], []
    clock = [time.perf_counter()]
    for i in range(count):
        out = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits.append(out.logits[0, -1].float())
        tokens.append(int(logits[-1].argmax()))
        clock.append(time.perf_counter())
        ids = torch.tensor([[tokens[-1] if forced is None else int(forced[i])]], device=ids.device)
    return torch.tensor(tokens), torch.stack(logits).cpu(), (clock[1] - clock[0], clock[-1] - clock[1])


def compare(torch_run, gdn_run, strict: bool) -> tuple[bool, str]:
    """Whether the tokens are equal, and the sentence that says it."""
    (want, logits, _), (got, other, _) = torch_run, gdn_run
    scale, difference = logits.abs().max().item(), (logits - other).abs().max().item()
    best = logits.topk(2).values
    gaps = (best[:, 0] - best[:, 1])[want != got]
    text = f"largest logit difference: {difference:.2e} (largest logit {scale:.2f}, smallest lead of a chosen token {(best[:, 0] - best[:, 1]).min():.2e})\n"
    if not len(gaps):
        return True, text + f"tokens: all {len(want)} equal"
    ties = int((gaps <= 2 * difference).sum())
    if not strict and ties == len(gaps):
        return True, text + f"tokens: {len(want) - ties} of {len(want)} equal, {ties} tied within the difference of the paths"
    return False, text + f"tokens: DIFFERENT at steps {(want != got).nonzero().flatten().tolist()}"


def table(runs: dict[str, dict[str, list[float]]], times: dict[str, tuple[float, float]]) -> str:
    lines = [f"{'op':<34}{'calls':>7}{'torch ms':>11}{'gdn_ops ms':>12}{'speed-up':>10}"]
    rows = [(name, len(own), sum(runs["torch"].get(name, [])), sum(own)) for name, own in runs["gdn"].items()]
    rows += [(what, 1, times["torch"][i], times["gdn"][i]) for i, what in enumerate(["whole prefill", "whole decode"])]
    for name, calls, before, after in rows:
        lines.append(f"{name:<34}{calls:>7}{before * 1e3:>11.1f}{after * 1e3:>12.1f}{before / after:>9.1f}x")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", type=Path, default=TEXT, help="any file")
    parser.add_argument("--prompt", type=int, default=1500, help="prompt length in tokens (bytes)")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"))
    args = parser.parse_args()
    logging.set_verbosity_error()
    device = torch.device(args.device)
    dtype = getattr(torch, args.dtype or ("float32" if device.type == "cpu" else "bfloat16"))
    prompt = args.text.read_bytes()[: args.prompt]
    if not prompt:
        parser.error(f"{args.text} is empty")

    model = build_model().to(device, dtype)
    ids = torch.tensor([list(prompt)], device=device)
    print(f"gdn_ops {gdn_ops.__version__}, torch {torch.__version__}, {device}, {dtype}, {torch.get_num_threads()} threads")
    print(f"prompt: {len(prompt)} bytes of {args.text.name}, ending in {prompt[-40:].decode(errors='replace')!r}")

    results, stats, times = {}, {}, {}
    strict = dtype == torch.float32
    for path in ("torch", "gdn"):
        forced = None if strict or path == "torch" else results["torch"][0]
        with gdn_transformers.patched(model) if path == "gdn" else contextlib.nullcontext():
            generate(model, ids[:, :70], 2)  # warm-up: thread pools, and on a GPU loading
            with timed(model, device) as stats[path]:
                results[path] = generate(model, ids, args.tokens, forced)
            times[path] = results[path][2]

    same, text = compare(results["torch"], results["gdn"], strict)
    print(f"generated: {bytes(results['gdn'][0].tolist()).decode(errors='replace')!r}")
    print(text)
    print(table(stats, times))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
