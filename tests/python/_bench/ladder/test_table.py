"""The ladder as text."""

from __future__ import annotations

import re

from jax_moye._bench.ladder.table import table


def test_table(ladder_files):
    lines = table(ladder_files[0]).splitlines()
    heads = [line for line in lines if line.startswith("rung")]  # of a table, or of several below each other
    for rung in ladder_files[0]["rungs"]:
        of_rung = [line for line in lines if re.match(rung["kernel"] + r"\*?\s", line)][: len(heads)]
        cells = {}
        for head, line in zip(heads, of_rung, strict=True):
            cells |= dict(zip(re.split(r"\s{2,}", head), re.split(r"\s{2,}", line), strict=True))
        assert cells["rung"] == rung["kernel"] + ("*" if rung["stand_in"] else "")
        assert cells["conflicts"] == str(rung["counted"]["shared"]["bank_conflicts"])
        assert cells["mma"] == str(rung["counted"]["instructions"]["mma"] or "-")
        efficiency = rung["counted"]["global"]["sector_efficiency"]
        assert cells["sector eff."] == f"{100 * efficiency:.1f} %"
        assert efficiency == 1 or rung["kernel"] == "sm90_odd_rows"  # whose words hold what is ahead of rows
    assert any(line.startswith("* simt_tiled has no bf16") for line in lines)
    assert "10. sm80_ldmatrix: fragments in one instruction, out of swizzled shared memory" in lines
    assert [line for line in lines if "not on the ladder" in line] == []
    others = table(ladder_files[0] | {"without_facts": ["new"]})
    assert "\nnew is not on the ladder: write jax_moye/layout/kernels/new.py\n" in others
    assert any(line.startswith("nothing is timed: without a GPU") for line in lines)


def test_a_measured_report_prints(measured_report):
    text = table(measured_report)
    assert "timed on A<GPU>, 4096x4096x4096" in text
    assert "nothing is timed" not in text
    assert re.search(r"^simt_overlap\*? +99\.0 +11\.0 +1\.5 ", text, re.M)
    assert "not timed: " + measured_report["rungs"][-1]["config"] in text


def test_the_share_of_the_peak_is_a_column(measured_report):
    points = [
        point | {"measured": point["measured"] | {"efficiency": 0.5}} for point in measured_report["stages"]["points"]
    ]
    text = table(measured_report | {"stages": measured_report["stages"] | {"points": points}})
    assert re.search(r"^6 .*50\.0 % +106\.0", text, re.M)
