"""`python -m jax_moye configs`."""

import json

import pytest

import jax_moye
from jax_moye.__main__ import main
from jax_moye._kernels.configs import all_configs

TABLE = jax_moye.configs()


def names_of(capsys, *options):
    assert main(["configs", *options, "--json"]) == 0
    return [config["name"] for config in json.loads(capsys.readouterr().out)]


def test_the_table_is_printed(capsys):
    assert main(["configs"]) == 0
    assert capsys.readouterr().out == f"{TABLE}\n"


def test_json_has_all_of_a_config(capsys):
    assert main(["configs", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    config = TABLE[0]
    assert (first["name"], first["tile"], first["archs"]) == (config.name, list(config.tile), config.archs)
    assert first["registers"] == (config.registers and dict(config.registers))


@pytest.mark.parametrize(
    ("options", "test"),
    [
        (["--dtype", "tf32"], lambda config: config.dtype == "tf32"),
        (["--dtype", "bfloat16", "--order", "tt"], lambda config: config.dtype == "bf16" and "TT" in config.orders),
        (["--kernel", TABLE[0].kernel], lambda config: config.kernel == TABLE[0].kernel),
        (["--out-dtype", "f32", "--order", "TT"], lambda c: "f32" in c.out_dtypes and "TT" in c.orders),
        (["--arch", "90"], lambda config: config.min_arch <= 90),
        (["--arch", "sm_100"], lambda config: config.max_arch == 0),
        (["--name", "simt_.*"], lambda config: config.name.startswith("simt_")),
    ],
)
def test_filters(options, test, capsys):
    expected = [config.name for config in TABLE if test(config)]
    assert 0 < len(expected) < len(TABLE) or options == ["--arch", "90"]
    assert names_of(capsys, *options) == expected
    assert main(["configs", *options]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == expected


def test_all_has_the_others_too(capsys):
    everything, products = all_configs(), set(TABLE)
    others = [config for config in everything if config not in products]
    assert others
    assert names_of(capsys, "--all") == [config.name for config in everything]
    for kernel in {config.kernel for config in others} - {config.kernel for config in products}:
        assert names_of(capsys, "--kernel", kernel) == [config.name for config in others if config.kernel == kernel]
    shared = TABLE[0].kernel  # of products: others of its rows are asked for
    assert names_of(capsys, "--kernel", shared) == [config.name for config in TABLE if config.kernel == shared]
    assert main(["configs", "--all", "--name", "nothing"]) == 1
    assert f"none of the {len(everything)} configs is as asked" in capsys.readouterr().err


def test_nothing_is_as_asked(capsys):
    assert main(["configs", "--name", "nothing"]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"jax_moye configs: none of the {len(TABLE)} configs is as asked\n")
    for wrong in (["--dtype", "bf17"], ["--name", "("], ["--arch", "nine"], ["--arch", "-3"]):
        with pytest.raises(SystemExit):
            main(["configs", *wrong])
        assert f"argument {wrong[0]}: " in capsys.readouterr().err
