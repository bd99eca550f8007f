"""`python -m jax_moye`: the table of kernels, which one is chosen and why, the ladder, the benchmark, drawings."""

import argparse
import sys

import jax_moye


def main(argv=None) -> int:
    """Parses the command line, runs the subcommand and returns its exit status."""
    from jax_moye._bench import bench, ladder
    from jax_moye._bench import report as show
    from jax_moye._inspect import explain
    from jax_moye._tune import tune
    from jax_moye.layout.draw import command as draw

    parser = argparse.ArgumentParser(prog="python -m jax_moye", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("configs", help="print the table of compiled kernels")
    explain.add_arguments(commands.add_parser("explain", help="which kernel computes a product on a GPU, and why"))
    bench.add_arguments(commands.add_parser("bench", help="time the kernels against XLA, torch and others"))
    tune.add_arguments(commands.add_parser("tune", help="time the configs of products and keep which is the fastest"))
    show.add_arguments(commands.add_parser("show", help="print a result of bench as a table, or draw it"))
    ladder.add_arguments(commands.add_parser("ladder", help="what each rung of the ladder of kernels does"))
    draw.add_arguments(commands.add_parser("draw", help="draw a layout, an instruction, a copy or a schedule"))
    arguments = parser.parse_args(argv)
    if arguments.command == "configs":
        print(jax_moye.configs())
        return 0
    if arguments.command == "explain":
        return explain.main(arguments)
    if arguments.command == "tune":
        return tune.main(arguments)
    if arguments.command == "show":
        return show.main(arguments)
    if arguments.command == "ladder":
        return ladder.main(arguments)
    if arguments.command == "draw":
        return draw.main(arguments)
    return bench.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
