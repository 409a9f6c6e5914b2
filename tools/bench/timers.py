"""Timers: device time with a cold cache, per call in a CUDA graph, and host time."""

import statistics
import time
from dataclasses import dataclass

import torch
from inputs import GPU

BANDWIDTH, RATE = 4.25e12, 799e12  # bytes and bf16 flops per second, measured on one H200 (device copy, 8192^3 product)


@dataclass(frozen=True)
class Time:
    """Microseconds."""

    median: float
    low: float
    high: float


def _time(samples: list[float]) -> Time:
    return Time(statistics.median_high(samples), min(samples), max(samples))


def floor_us(nbytes: float, flops: float = 0) -> float:
    return 1e6 * max(nbytes / BANDWIDTH, flops / RATE)


_flush = None


def cold(fn, rep: int = 11, warm: int = 3) -> Time:
    """Per call, device events, L2 flushed before each; a sleep of 2 ms lets the host run ahead."""
    global _flush
    if not GPU:
        fn()
        return None
    if _flush is None:
        _flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    for _ in range(warm):
        fn()
    torch.cuda.synchronize()
    samples = []
    for _ in range(rep):
        _flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(4_000_000)
        start.record()
        fn()
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end) * 1e3)
    return _time(samples)


def graph(fns: list, rep: int = 20, warm: int = 2) -> Time:
    """Per call over a CUDA graph that runs every fn once: one layer each, with a state of its own."""
    if not GPU:
        for fn in fns:
            fn()
        return None
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            for fn in fns:
                fn()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        for fn in fns:
            fn()
    for _ in range(3):
        recorded.replay()
    torch.cuda.synchronize()
    samples = []
    for _ in range(rep):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        recorded.replay()
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end) * 1e3 / len(fns))
    return _time(samples)


def host(fn, n: int = 50) -> float | None:
    """Best microseconds of host time per call of five runs of n calls, the device working behind."""
    if not GPU:
        return None
    for _ in range(10):
        fn()
    torch.cuda.synchronize()
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(n):
            fn()
        best = min(best, (time.perf_counter() - start) / n * 1e6)
        torch.cuda.synchronize()
    return best


def sync() -> None:
    if GPU:
        torch.cuda.synchronize()
