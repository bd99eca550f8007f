"""The workloads of real models: what the script writes, and that fitting and validation share nothing."""

import importlib.util
import json
import pathlib

import pytest

from jax_moye._timing.workloads import Workload, read_suite

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks/models"
SPEC = importlib.util.spec_from_file_location("model_workloads", ROOT / "tools/model_workloads.py")
assert SPEC is not None
assert SPEC.loader is not None
model_workloads = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(model_workloads)


def sizes(workload: Workload) -> tuple:
    return workload.batch, workload.m, workload.n, workload.k, workload.layout


@pytest.fixture(scope="module")
def parts() -> dict[str, list[Workload]]:
    return {part: read_suite(FOLDER / f"{part}.json", ".*") for part in ("fit", "validation")}


def test_the_files_are_what_the_script_writes():
    for part, lines in model_workloads.workloads().items():
        assert (FOLDER / f"{part}.json").read_text() == model_workloads.text(part, lines)


def test_no_shape_is_in_two_files(parts):
    suite = read_suite(ROOT / "benchmarks/suite.json", ".*")
    found = [sizes(workload) for workload in [*parts["fit"], *parts["validation"]]]
    assert len(set(found)) == len(found)
    assert not set(found) & {sizes(workload) for workload in suite}


def test_families_are_in_one_part():
    models = json.loads((FOLDER / "models.json").read_text())["models"]
    families = {model["family"] for model in models}
    kept = {family for family in families if model_workloads.is_validation(family)}
    assert len(families) >= 15
    assert len(kept) >= 4
    of = {model["name"].lower(): model["family"] for model in models}
    for part, wanted in (("fit", families - kept), ("validation", kept)):
        lines = model_workloads.workloads()[part]
        assert {of[line["id"].split("/", 1)[1].rsplit("/", 2)[0]] for line in lines} <= wanted


def test_every_kind_is_in_both(parts):
    for workloads in parts.values():
        assert len(workloads) >= 300
        assert {workload.regime for workload in workloads} == {"train", "prefill", "decode"}
        assert {workload.layout for workload in workloads} == {"NN", "NT", "TN", "TT"}
        assert {workload.m for workload in workloads if workload.regime == "decode"} == set(model_workloads.DECODED)
        assert any(workload.n % 8 for workload in workloads), "an odd vocabulary"
        assert any(workload.batch > 1 for workload in workloads)
        assert all(workload.flops <= model_workloads.MOST_FLOPS for workload in workloads)
        assert len({workload.id for workload in workloads}) == len(workloads)


@pytest.mark.parametrize("weights", ["NN", "NT"])
def test_the_gradients_of_a_layer(weights):
    tokens, layer = 5, (3, 7)  # x (5,3), y (5,7)
    assert model_workloads.forward(tokens, layer, weights) == (1, 5, 7, 3, weights)
    gradients = model_workloads.gradients(tokens, layer, weights)
    assert gradients["dx"] == (1, 5, 3, 7, "NT" if weights == "NN" else "NN")  # dy (5,7) times the weight's transpose
    assert gradients["dw"] == ((1, 3, 7, 5, "TN") if weights == "NN" else (1, 7, 3, 5, "TN"))
