"""The models of time on products that they were not fitted to, and the script that fits them."""

import importlib.util
import json
import math
import pathlib
import re
import statistics

import numpy as np
import pytest

from jax_moye._selection import cost, cost_xla

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("fit_cost", ROOT / "tools/fit_cost.py")
assert SPEC is not None
assert SPEC.loader is not None
fit_cost = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(fit_cost)
# What the constants were fitted to a part of, and what was measured later.
FILES = sorted((ROOT / "benchmarks/results").glob("*-configs.json"))
LATER = ROOT / "benchmarks/results/nvidia_h200-2026-11-22-b0a31bc-measured.json"
# Races of 2026-11, with sm90_sliced_k.
RACED = ROOT / "benchmarks/results/nvidia_h200-2026-11-30-raced.json"


@pytest.fixture(scope="module")
def products():
    found = fit_cost.read(FILES)
    if sum(len(product.us) for product in found) < 6900:
        pytest.skip("not all of the measured configs in this build")
    return found


@pytest.fixture(scope="module")
def with_later(products):
    return fit_cost.read([*FILES, LATER])


def part(products, name):
    return [product for product in products if product.part == name]


def test_what_is_kept_from_fitting(products):
    kept = {
        fit_cost.sizes_of(row) for row in json.loads((ROOT / "benchmarks/models/validation.json").read_text())["rows"]
    }
    assert {product.sizes for product in part(products, "validation")} == {x.sizes for x in products} & kept
    assert [len(part(products, name)) for name in fit_cost.PARTS] == [184, 92]


def test_regret(products):
    """Of the model's choices on products of real models, those that it was not fitted to among them."""
    for name, mean, worst in (("fit", 0.97, 0.86), ("validation", 0.97, 0.86)):
        found = fit_cost.choices(part(products, name))
        assert fit_cost.mean_regret(found) > mean
        assert found[0].regret > worst
        for chosen in found:
            best = min(chosen.product.us.values())
            assert chosen.regret == best / chosen.product.us[chosen.config]
            assert chosen.product.us[chosen.best] == best


@pytest.mark.parametrize("name", fit_cost.PARTS)
def test_regret_among_the_configs_of_this_build(name):
    """The same in a build of fewer configs, as CI's, on the products that enough of them were timed on."""
    some = [product for product in part(fit_cost.read(FILES), name) if len(product.us) >= 4]
    if len(some) < 80:
        pytest.skip("few of the measured configs in this build")
    found = fit_cost.choices(some)
    assert fit_cost.mean_regret(found) > 0.97
    assert found[0].regret > 0.86


def test_regret_on_products_that_were_measured_later(products):
    """Nothing was fitted to their times, nor was the model's form made for them."""
    known = {product.sizes for product in products}
    later = [product for product in fit_cost.read([LATER]) if product.sizes not in known]
    assert len(later) > 150
    found = fit_cost.choices(later)
    assert fit_cost.mean_regret(found) > 0.975
    assert [chosen.regret < 0.85 for chosen in found[2:]] == [False] * (len(found) - 2)


def raced_with(kernel):
    """Products kept from fitting on which a kernel's configs were timed among others."""
    return [
        product
        for product in part(fit_cost.read([RACED]), "validation")
        if {config.kernel == kernel for config in product.us} == {True, False}
    ]


def test_what_is_raced_is_kept_from_fitting_where_its_row_says_so():
    found = {product.sizes: product.part for product in fit_cost.read([RACED])}
    rows = [row for row in json.loads(RACED.read_text())["products"] if fit_cost.sizes_of(row) in found]
    assert 0.25 < statistics.fmean(row.get("kept", False) for row in rows) < 0.45
    known = {product.sizes for product in part(fit_cost.read([LATER, *FILES]), "validation")}
    for row in rows:
        assert (found[fit_cost.sizes_of(row)] == "validation") >= row.get("kept", False), row
    assert known


def test_regret_where_threads_load_parts_of_lines():
    """Few rows times a wide matrix of contiguous columns: tiles of 16 and 32 columns read parts of lines."""
    some = raced_with("sm90_sliced_k")
    if len(some) < 40:
        pytest.skip("few of the measured configs in this build")
    assert fit_cost.mean_regret(fit_cost.choices(some)) > 0.975
    machine, speeds = fit_cost.present()
    wide = [product for product in some if product.problem.order == "NN" and product.problem.n >= 10_000]
    assert len(wide) >= 4
    assert fit_cost.mean_regret(fit_cost.choices(wide)) > 0.95
    with fit_cost.using((machine._replace(short_line=0.0), speeds)):
        assert fit_cost.mean_regret(fit_cost.choices(wide)) < 0.9


@pytest.mark.parametrize(
    ("field", "number"),
    [("l2_bytes_per_us", 1e12), ("queue_bytes_per_us", 1e12), ("power_products_per_us", 1e12), ("latency_us", 1.5)],
)
def test_a_worse_model_chooses_worse(products, field, number):
    """What the model says of the cache, the memory, the power and the latency is needed."""
    machine, speeds = fit_cost.present()
    worse = machine._replace(**{field: number})
    kept = part(products, "validation")
    before = fit_cost.mean_regret(fit_cost.choices(kept))
    with fit_cost.using((worse, speeds)):
        after = fit_cost.mean_regret(fit_cost.choices(kept))
    assert fit_cost.present() == (machine, speeds)
    assert after < before - 0.003


def test_the_times_of_good_configs(products):
    for name in fit_cost.PARTS:
        errors = [
            math.log(cost.predicted_us(config, product.problem, 90) / us)
            for product in part(products, name)
            for config, us in product.us.items()
            if us < 1.3 * min(product.us.values())
        ]
        assert math.sqrt(statistics.fmean(x * x for x in errors)) < 0.065


def test_a_prediction_is_sure_where_the_errors_say_so(with_later):
    assert fit_cost.sure(fit_cost.compared(fit_cost.read(fit_cost.FILES))) == pytest.approx(cost_xla.SURE, abs=0.01)
    rows = fit_cost.compared(with_later)
    for name, number, worst, chosen, mean in (("fit", 180, 0.95, 8, 1.25), ("validation", 80, 1, 2, 1.15)):
        of_part = part(rows, name)
        assert len(of_part) > number
        assert fit_cost.spread(of_part) < 0.125
        kept = [row for row in of_part if row.predicted_us * cost_xla.SURE < cost_xla.xla_us(row.problem, 90)]
        ratios = [row.xla_us / row.ours_us for row in kept]
        assert len(ratios) >= chosen
        assert min(ratios) > worst
        assert statistics.geometric_mean(ratios) > mean


def test_xlas_time_of_the_same_run_is_taken(tmp_path, products):
    rows = json.loads(FILES[0].read_text())["products"][:3]
    rows[1]["xla_seconds"] = 5e-5
    rows[2]["xla_us"] = 60
    file = tmp_path / "configs.json"
    file.write_text(json.dumps({"products": rows}))
    found = fit_cost.read([file])
    assert [product.xla_us for product in found] == [None, pytest.approx(50), pytest.approx(60)]
    (row,) = (row for row in fit_cost.compared(found) if row.problem == found[1].problem)
    config = min(found[1].us, key=lambda config: cost.predicted_us(config, row.problem, 90))
    assert (row.xla_us, row.ours_us, row.part) == (pytest.approx(50), found[1].us[config], found[1].part)
    assert row.error == pytest.approx(math.log(50 / row.ours_us * row.predicted_us / cost_xla.xla_us(row.problem, 90)))


def test_a_product_of_two_files_is_one(tmp_path):
    row = json.loads(FILES[0].read_text())["products"][0]
    for i, factor in enumerate((1, 4)):
        changed = row | {"us": {name: factor * us for name, us in row["us"].items()}}
        (tmp_path / f"{i}.json").write_text(json.dumps({"products": [changed]}))
    (one,) = fit_cost.read([tmp_path / "0.json"])
    (both,) = fit_cost.read([tmp_path / "0.json", tmp_path / "1.json"])
    assert both.us == pytest.approx({config: 2 * us for config, us in one.us.items()})


def test_least_squares_finds_the_least():
    x = np.linspace(0, 1, 30)
    y = 3 * np.exp(-2 * x)
    found = fit_cost.least_squares(lambda p: p[0] * np.exp(-p[1] * x) - y, np.array([1.0, 0.5]), rounds=40)
    assert found == pytest.approx([3, 2], rel=1e-3)


def test_constants_come_back_from_the_times_that_they_predict(products):
    """The fit of times which are another model's finds that model."""
    machine, speeds = fit_cost.present()
    other = machine._replace(latency_us=1.4 * machine.latency_us, l2_bytes_per_us=0.8 * machine.l2_bytes_per_us)
    some = part(products, "fit")[::6]
    with fit_cost.using((other, speeds)):
        some = [
            product._replace(us={config: cost.predicted_us(config, product.problem, 90) for config in product.us})
            for product in some
        ]
    found, _ = fit_cost.fit(some)
    assert found.latency_us == pytest.approx(other.latency_us, rel=0.05)
    assert found.l2_bytes_per_us == pytest.approx(other.l2_bytes_per_us, rel=0.05)
    with fit_cost.using((machine, speeds)):
        assert fit_cost.mean_regret(fit_cost.choices(some)) < 0.999


def test_the_command_says_it_all(capsys, products):
    fit_cost.main(["--worst", "2"])
    lines = capsys.readouterr().out.splitlines()
    # Without nvcc nobody knows the registers, and the model chooses by 0.01 worse.
    assert re.match(r"fit: 631 products, regret 0\.9[78]", lines[0])
    assert re.match(r"validation: 293 products, regret 0\.9[78]", lines[3])
    assert lines[-1] == f"cost_xla.SURE = {cost_xla.SURE}"
