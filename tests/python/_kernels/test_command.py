"""`python -m jax_moye configs`."""

import jax_moye
from jax_moye.__main__ import main


def test_the_table_is_printed(capsys):
    assert main(["configs"]) == 0
    assert capsys.readouterr().out == f"{jax_moye.configs()}\n"
