"""Rows of results as lines, short tables and Markdown."""

import importlib.metadata

import torch
from inputs import GPU


def elementwise():
    """What host times are compared with: one small torch.mul."""
    x = torch.randn(8, 32, 128, device="cuda" if GPU else "cpu").bfloat16()
    return lambda: torch.mul(x, x)


def machine(gdn_ops) -> dict:
    info = gdn_ops.build_info()
    head = dict(gdn_ops=info["version"], archs=info["archs"], torch=torch.__version__, module=gdn_ops.__file__)
    head["device"] = torch.cuda.get_device_name() if GPU else "CPU: correctness only, small sizes, no times"
    for name in ("triton", "fla-core"):
        try:
            head[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            head[name] = "not installed"
    return head


def number(x: float | None) -> str:
    return "" if x is None else f"{x:.2f}" if x < 10 else f"{x:.1f}" if x < 100 else f"{x:.0f}"


def errors(row: dict) -> str:
    return " / ".join("-" if e is None else f"{e:.1e}" for e in row.get("errors", []))


def line(row: dict) -> str:
    """One row as it comes."""
    name = f"{row['group']:8} {row['name']}"
    if text := row.get("skipped") or row.get("failed"):
        return f"{name}: {'skipped' if 'skipped' in row else 'FAILED'}: {text}"
    t, parts = row.get("ours", {}), []
    if "median" in t:
        parts.append(
            f"{number(t['median'])} us ({number(t['low'])}..{number(t['high'])}), {row['floor'] / t['median']:.0%} of the floor {number(row['floor'])}"
        )
    for peer, p in row.get("peers", {}).items():
        if "median" in p:
            parts.append(f"{peer} {number(p['median'])} us = {p['median'] / t['median']:.2f} x ours")
    if t.get("host"):
        parts.append(f"host {number(t['host'])} us")
    parts.append(f"errors {errors(row)}")
    return f"{name}: {'; '.join([*parts, *row.get('notes', [])])}" + (f" [{row['seconds']} s]" if "seconds" in row else "")


def _timed(rows: list[dict]) -> list[list[str]]:
    peers = sorted({p for r in rows for p in r.get("peers", {})})
    table = [["case", "us (min..max)", "floor", "of floor", "goal", *(c for p in peers for c in (p, f"{p}/ours")), "host us", "error"]]
    for r in rows:
        if text := r.get("skipped") or r.get("failed"):
            table.append([r["name"], ("skipped: " if "skipped" in r else "FAILED: ") + text[:90]])
            continue
        t = r["ours"]
        if "median" not in t:
            table.append([r["name"], "checked", "", "", "", *[""] * (2 * len(peers)), "", errors(r)])
            continue
        cells = [r["name"], f"{number(t['median'])} ({number(t['low'])}..{number(t['high'])})", number(r["floor"])]
        cells += [f"{r['floor'] / t['median']:.0%}", number(r.get("goal"))]
        for p in peers:
            other = r["peers"].get(p, {}).get("median")
            cells += [number(other), f"{other / t['median']:.2f}" if other else ""]
        table.append([*cells, number(t["host"]), errors(r)])
    return table


def _host(rows: list[dict], mul: float | None) -> list[list[str]]:
    table = [["op, case", "host us", "x torch.mul"], ["torch.mul", number(mul), "1.00" if mul else ""]]
    for r in rows:
        h = r.get("ours", {}).get("host")
        text = r.get("skipped") or r.get("failed")
        table.append([r["name"], text[:90] if text else number(h), f"{h / mul:.2f}" if h and mul else ""])
    return table


def _cold(rows: list[dict]) -> list[list[str]]:
    table = [["fresh process", "first call ms", "second call ms", "note"]]
    for r in rows:
        table.append([r["name"], number(r.get("first")), number(r.get("second")), r.get("failed") or r.get("note", "")])
    return table


def _tables(head: dict, rows: list[dict]) -> dict[str, list[list[str]]]:
    found: dict = {}
    for r in rows:
        if "skipped" not in r:
            found.setdefault(r["group"], []).append(r)
    makers = {"host": lambda rs: _host(rs, head.get("mul_host")), "cold": _cold}
    return {group: makers.get(group, _timed)(rs) for group, rs in found.items()}


def tables(head: dict, rows: list[dict]) -> str:
    lines = []
    for group, table in _tables(head, rows).items():
        widths = [max(len(r[i]) for r in table if i < len(r) and (len(r) > 2 or i == 0)) for i in range(len(table[0]))]
        lines += ["", f"== {group}"]
        lines += ["  ".join(c.ljust(widths[i]) if i < len(widths) else c for i, c in enumerate(r)).rstrip() for r in table]
    failed = [f"\n  {r['group']} {r['name']}: {r['failed'][:200]}" for r in rows if "failed" in r]
    skipped = sorted({r["skipped"] for r in rows if "skipped" in r})
    return "\n".join([*lines, "", *skipped, f"{len(rows)} rows, {len(failed)} failed{''.join(failed)}"])


def markdown(head: dict, rows: list[dict]) -> str:
    lines = [f"Measured on {head['device']}, torch {head['torch']}, gdn-ops {head['gdn_ops']}, fla-core {head['fla-core']}.", ""]
    for group, table in _tables(head, rows).items():
        width = len(table[0])
        body = ["| " + " | ".join([*r, *[""] * (width - len(r))]) + " |" for r in table]
        lines += [f"### {group}", "", body[0], "|" + " --- |" * width, *body[1:], ""]
    return "\n".join(lines)
