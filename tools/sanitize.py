"""Runs every op once on each of its samples, for compute-sanitizer:

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python tools/sanitize.py [op ...]

Every tensor is an allocation of its own then, so an access outside one is seen. Prints one line an op and exits with
1 if a call failed. Without a GPU it runs on the CPU.
"""

import sys
import time
from pathlib import Path

import torch

import gdn_ops

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from samples import SAMPLES  # noqa: E402


def main() -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_grad_enabled(False)
    failures = 0
    for op in gdn_ops.build_info()["ops"]:
        if len(sys.argv) > 1 and op not in sys.argv[1:]:
            continue
        if op not in SAMPLES:
            print(f"{op}: no samples", flush=True)
            continue
        start, words = time.time(), []
        for i, builder in enumerate(SAMPLES[op]):
            try:
                getattr(torch.ops.gdn, op)(**builder(device))
                if device == "cuda":
                    torch.cuda.synchronize()
                words.append("ok")
            except Exception as e:
                failures += 1
                words.append(f"sample {i} FAILED: {type(e).__name__} {str(e)[:200]}")
        print(f"{op}: {', '.join(words)} [{time.time() - start:.1f} s]", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
