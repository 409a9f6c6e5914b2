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


@pytest.fixture(autouse=True)
def quiet():
    """No gradients; one thread, which is faster for calls this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule, native_backend):
    problems, checked = [], set()
    for op in [op for op in OPS if op in SAMPLES]:
        for i, call in enumerate(calls(op, native_backend.device)):
            for what, check in rule(call):
                checked.add(op)
                try:
                    check()
                except (AssertionError, RuntimeError, IndexError) as e:
                    problems.append(f"{op}, sample {i}, {what}: {e}")
    assert not problems, "\n".join([f"{len(problems)} problems:", *problems[:40]])
    arguments = {op: {a.name for a in getattr(torch.ops.gdn, op).default._schema.arguments} for op in OPS}
    expected = {op for op in OPS if not rule.about or arguments[op] & set(rule.about)}
    missing = expected - checked - NOT_CHECKED.get(rule.__name__, set())
    assert checked and not missing, f"tests/samples.py has no call that the rule is about for {missing}"
