"""The machine code of the installed kernels against tools/sass_rules.json, and the checker itself."""

import collections
import importlib.util
import json
import pathlib

import pytest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"


def load(name):
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_sass = load("check_sass")
RULES = json.loads((TOOLS / "sass_rules.json").read_text())


def counts(**opcodes):
    return {("sm_80", "_Z3fmt_kernelLi8E"): collections.Counter(opcodes)}


RULE = {"kernel": "fmt_kernel", "arch": ["sm_80", "sm_90"], "min": {"HMMA": 4}, "max": {"LDL": 0}}


def test_a_rule_that_holds():
    assert check_sass.broken_rules(counts(HMMA=4), [RULE]) == []


def test_bounds_are_named():
    assert check_sass.broken_rules(counts(HMMA=3, LDL=1), [RULE]) == [
        "sm_80: 1 LDL, expected at most 0, in _Z3fmt_kernelLi8E",
        "sm_80: 3 HMMA, expected at least 4, in _Z3fmt_kernelLi8E",
    ]


def test_a_rule_without_a_kernel_is_broken():
    # Or a renamed kernel would be checked no more.
    (fault,) = check_sass.broken_rules(counts(HMMA=4), [{**RULE, "kernel": "other_kernel"}])
    assert fault.startswith("sm_80: no kernel for the rule")
    # Unless not all rows were built; what is there must still obey.
    assert check_sass.broken_rules(counts(HMMA=4), [{**RULE, "kernel": "other_kernel"}], subset=True) == []
    assert len(check_sass.broken_rules(counts(HMMA=3, LDL=1), [RULE], subset=True)) == 2


def test_where_picks_rows():
    rules = [{**RULE, "min": {"LDGSTS": 1}, "where": "Li4E"}, {**RULE, "where": "Li8E"}]
    (fault,) = check_sass.broken_rules(counts(HMMA=4), rules)
    assert "no kernel for the rule" in fault
    assert "LDGSTS" in fault


def installed_cuda_module():
    spec = importlib.util.find_spec("jax_moye._moye_cuda")
    if spec is None:
        pytest.skip("jax_moye was built without CUDA kernels")
    if reason := check_sass.unavailable():
        pytest.skip(reason)
    return spec.origin


def test_installed_kernels_obey_the_rules():
    found = check_sass.count_instructions(installed_cuda_module())
    assert found
    assert check_sass.broken_rules(found, RULES) == []


def test_every_kernel_family_has_a_rule():
    import jax_moye

    families = {config.kernel for config in jax_moye.configs()}
    assert families <= {rule["kernel"].removesuffix("_kernel") for rule in RULES}


def test_registers_are_reported_for_every_row_and_architecture():
    import jax_moye

    found = check_sass.architectures(installed_cuda_module())
    assert found
    reported = set()
    for config in jax_moye.configs():
        if config.registers is None:  # a row without code for the architectures asked for
            assert config.max_arch or config.dtype in ("e4m3", "e5m2")
            continue
        assert set(config.registers) <= found, config.name
        assert (set(config.registers) == {"sm_90a"}) == config.kernel.startswith("sm90_"), config.name
        assert all(0 < registers <= 255 for registers in config.registers.values()), config.name
        reported |= set(config.registers)
    assert reported == found
