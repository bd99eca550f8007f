"""The machine code of the installed kernels against tools/sass_rules.json, and the checker itself."""

import collections
import importlib.util
import json
import pathlib
import subprocess

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


def code(*lines):
    """Instructions, each as address, condition, opcode and where it goes."""
    listing = "".join(f"        /*{line[:2]:0>4}*/ {line[3:]} ;\n" for line in lines)
    (found,) = check_sass.read_code(f"\tcode for sm_90a\n\t\tFunction : f\n{listing}").values()
    return found


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


def encoded(*instructions):
    """A listing with encodings: of each instruction the opcode, the scoreboard that it sets, and those it waits for."""
    lines = ["\tcode for sm_90a", "\t\tFunction : f"]
    for i, (opcode, sets, waits) in enumerate(instructions):
        upper = (7 if sets is None else sets) << 46 | sum(1 << 52 + board for board in waits)
        lines += [f"        /*{16 * i:04x}*/    {opcode} R0, [R1] ;   /* 0x{0:016x} */"]
        lines += [f"{' ' * 40}/* 0x{upper:016x} */"]
    return "\n".join(lines)


LOAD, ARRIVE = ("LDS.64", 2, []), ("@!P0 SYNCS.ARRIVE.TRANS64.A1T0", None, [])


@pytest.mark.parametrize(
    ("instructions", "number"),
    [
        ([LOAD, ARRIVE], 1),
        ([("LDSM.16.M88.4", 0, []), ("LDSM.16.M88.4", 1, []), ("HMMA.1688.F32.TF32", None, [0]), ARRIVE, ARRIVE], 2),
        ([LOAD, ("HMMA.1688.F32.TF32", None, [2]), ARRIVE], 0),
        ([LOAD, ("HMMA.1688.F32.TF32", None, [1]), ARRIVE], 1),
        ([LOAD, ("SYNCS.ARRIVE.TRANS64.A1T0", None, [2])], 0),
        ([LOAD, ("MEMBAR.ALL.CTA", None, []), ("FENCE.VIEW.ASYNC.S", None, []), ARRIVE], 0),
        ([("LDG.E", 2, []), ("SYNCS.PHASECHK.TRANS64.TRYWAIT", 3, []), ARRIVE], 0),
        ([LOAD, ("SYNCS.PHASECHK.TRANS64.TRYWAIT", 3, [])], 0),
    ],
)
def test_arrivals_while_loads_are_under_way(instructions, number):
    assert sum(check_sass.early_arrivals(encoded(*instructions)).values()) == number
    (found,) = check_sass.count_listing(encoded(*instructions)).values()
    assert check_sass.number_of(found, "early SYNCS") == number


def test_modifiers_may_be_named():
    found = counts(**{"LDSM.16.M88.4": 3, "LDSM.16.MT88.2": 2, "LDGSTS.E.BYPASS.128.ZFILL": 1})
    (opcodes,) = found.values()
    for key, number in {"LDSM": 5, "LDSM.4": 3, "LDSM.4.16": 3, "LDGSTS.128": 1, "LDGSTS.64": 0, "LDS": 0}.items():
        assert check_sass.number_of(opcodes, key) == number


def test_the_main_loop_is_the_one_that_multiplies():
    inner = code("20 HMMA.16816.F32", "30 LDSM.16.M88.4", "40 @P0 BRA 0x20")
    outer = [*code("10 MOV"), *inner, *code("50 @P0 BRA 0x10")]
    epilogue = code("60 FFMA", "70 FFMA", "80 @P0 BRA 0x60", "90 BRA 0xa0")
    assert check_sass.main_loop(outer + epilogue) == inner
    assert check_sass.main_loop(epilogue) == epilogue[:3]
    assert check_sass.main_loop(code("00 MOV")) == []


def test_what_waits_behind_the_rest_closes_no_loop():
    """There a CTA waits for the first stage, at 0x90, and for the others, at 0xb0, and comes back."""
    loop = code("30 SYNCS", "40 @!P0 BRA 0xb0", "50 HGMMA.64x128x16.F32.BF16", "60 @P1 BRA 0x30")
    before = code("00 SYNCS", "10 @!P0 BRA 0x90", "20 HGMMA.64x128x16.F32.BF16")
    behind = code("70 HGMMA.64x128x16.F32.BF16", "80 EXIT")
    waits = code("90 @!P0 BRA 0x90", "a0 BRA 0x20", "b0 @!P0 BRA 0xb0", "c0 BRA 0x50")
    assert check_sass.main_loop([*before, *loop, *behind, *waits]) == loop


def test_rules_of_the_loop():
    found = counts(**{"LDG": 40, "loop LDGSTS.E.128": 3, "loop HMMA": 4})
    rule = {**RULE, "min": {}, "loop": {"min": {"LDGSTS.128": 4, "HMMA": 4}, "max": {"LDG": 0}}}
    assert check_sass.broken_rules(found, [rule]) == [
        "sm_80: 3 loop LDGSTS.128, expected at least 4, in _Z3fmt_kernelLi8E"
    ]


def test_where_picks_rows():
    rules = [{**RULE, "min": {"LDGSTS": 1}, "where": "Li4E"}, {**RULE, "where": "Li8E"}]
    (fault,) = check_sass.broken_rules(counts(HMMA=4), rules)
    assert "no kernel for the rule" in fault
    assert "LDGSTS" in fault


def test_counts_are_kept_for_the_file_itself(tmp_path):
    """Not for another file of the same name, nor for another check: who asks then has to disassemble."""
    (tmp_path / "main.c").write_text("int main(void) { return 0; }\n")
    program, other, bare = (tmp_path / name for name in ("program", "other", "bare"))
    for path, option in (
        (program, "-Wl,--build-id=sha1"),
        (other, "-Wl,--build-id=sha1,-s"),
        (bare, "-Wl,--build-id=none"),
    ):
        subprocess.run(["g++", tmp_path / "main.c", option, "-o", path], check=True)
    found, kept = counts(HMMA=4, LDL=1), tmp_path / "counts.json"
    check_sass.keep(kept, program, found)
    assert check_sass.kept(kept, program) == found
    subprocess.run(["strip", program], check=True)  # as an installation does
    assert check_sass.kept(kept, program) == found
    assert check_sass.kept(kept, other) is None
    kept.write_text(kept.read_text().replace('"identity": "', '"identity": "0'))
    assert check_sass.kept(kept, program) is None
    check_sass.keep(kept, bare, found)  # no build id: nobody can say whose they are
    assert check_sass.kept(kept, bare) is None


def installed_cuda_module():
    spec = importlib.util.find_spec("jax_moye._moye_cuda")
    if spec is None:
        pytest.skip("jax_moye was built without CUDA kernels")
    if reason := check_sass.unavailable():
        pytest.skip(reason)
    return spec.origin


def counts_of_the_build(module):
    """What was counted of this very module at the end of its build in this checkout."""
    kept = (check_sass.kept(path, module) for path in TOOLS.parent.glob("build/*/sass_counts.json"))
    return next((counts for counts in kept if counts), None)


@pytest.mark.timeout(900)  # 60 MB of machine code, disassembled: minutes on a busy machine
def test_installed_kernels_obey_the_rules():
    module = installed_cuda_module()
    found = counts_of_the_build(module) or check_sass.count_instructions(module)
    assert {arch for arch, _ in found} == check_sass.architectures(module)
    # It may have been built without the rows of a rule. That each rule finds a kernel is tested by what compiles them.
    assert check_sass.broken_rules(found, RULES, subset=True) == []


def test_every_kernel_family_has_a_rule():
    import jax_moye

    families = {config.kernel for config in jax_moye.configs()}
    assert families <= {rule["kernel"].removesuffix("_kernel") for rule in RULES}


def test_registers_are_reported_for_every_row_and_architecture():
    import jax_moye
    from jax_moye._kernels import ffi

    found = check_sass.architectures(installed_cuda_module())
    assert found
    built = {config["name"] for config in ffi.extension("cuda").configs()}  # tests of Python replace `ffi.built`
    reported = set()
    for config in jax_moye.configs():
        assert (config.registers is None) == (config.name not in built), config.name
        if config.registers is None:  # not in the module, which has the architectures and configs that were asked for
            continue
        assert set(config.registers) <= found, config.name
        assert (set(config.registers) == {"sm_90a"}) == config.kernel.startswith("sm90_"), config.name
        assert all(0 < registers <= 255 for registers in config.registers.values()), config.name
        reported |= set(config.registers)
    assert reported == found
