"""Every op under the rules that all ops obey, on all calls of tests/samples.py: rules.py, rules_slots.py, rules_sequences.py."""

import pytest
import rules
import rules_sequences
import rules_slots
import torch
from calls import calls
from samples import SAMPLES

from gdn_ops.table import OPS

RULES = [*rules.RULES, *rules_slots.RULES, *rules_sequences.RULES]
INDEX = {
    "prepare_lens",
    "prepare_chunk_indices",
    "prepare_chunk_offsets",
    "advance_rings",
}  # their own tests compare them with plain Python
POOLS = {"copy_slots", "zero_slots", "gather_states", "scatter_states", "scatter_accepted_states", "commit_accepted"}
# Ops that a rule is not checked for though they have an argument that it is about: they have no activations.
NOT_CHECKED = dict.fromkeys((rule.__name__ for rule in rules_sequences.RULES), INDEX) | {"strides_of_activations": INDEX | POOLS}
# Where kernels are interpreted, by the time of a call there: of each sample all checks of a rule (+, also of ops that are not
# named here), the last one (1), or none (-). An op without any is not checked there.
INTERPRETED = {
    "chunk_local_cumsum": "-1-1",
    "chunk_scaled_dot_kkt": "-1--",
    "chunk_kkt_solve": "-1--",
    "solve_tril": "-1--",
    "recompute_w_u": "-1--",
    "chunk_fwd_h": "-----",  # 1 to 4 s a call
    "chunk_fwd_o": "-----",  # 1 to 3 s
    "chunk_gated_delta_rule": "-----",  # 1 to 3 s
    "chunk_gated_delta_rule_update": "-------",  # 1 to 3 s
    "gdn_prefill": "----------",  # 1 to 3 s
    "fused_recurrent_gated_delta_rule": "1111-1",
    "fused_recurrent_gated_delta_rule_update": "+++1+11++11+++",
    "fused_recurrent_gated_delta_rule_ring": "+++11+-1+",
    "gdn_decode": "++++1111++11+",
}


@pytest.fixture(autouse=True)
def quiet():
    """No gradients; one thread, which is faster for calls this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


def checks(rule, op: str, backend: str):
    """``(sample, words, function that checks)``"""
    marks = INTERPRETED.get(op, "") if backend == "interpreter" else ""
    found = calls(op, backend) if not marks or set(marks) != {"-"} else []
    assert not found or len(marks) in (0, len(found)), f"INTERPRETED[{op}]: expected {len(found)} marks"
    for i, call in enumerate(found):
        mark, mine = marks[i : i + 1] or "+", list(rule(call))
        for what, check in {"+": mine, "1": mine[-1:], "-": []}[mark]:
            yield i, what, check


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule, backend):
    problems, checked = [], set()
    for op in [op for op in OPS if op in SAMPLES]:
        for i, what, check in checks(rule, op, backend.name):
            checked.add(op)
            try:
                check()
            except (AssertionError, RuntimeError, IndexError) as e:
                problems.append(f"{op}, sample {i}, {what}: {e}")
    assert not problems, "\n".join([f"{len(problems)} problems:", *problems[:40]])
    arguments = {op: {a.name for a in getattr(torch.ops.gdn, op).default._schema.arguments} for op in OPS}
    expected = {op for op in OPS if not rule.about or arguments[op] & set(rule.about)}
    left_out = {op for op, marks in INTERPRETED.items() if set(marks) == {"-"}} if backend.name == "interpreter" else set()
    missing = expected - checked - left_out - NOT_CHECKED.get(rule.__name__, set())
    assert checked and not missing, f"tests/samples.py has no call that the rule is about for {missing}"
