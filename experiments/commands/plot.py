"""`servesim plot`: the figures that several results make together."""

from __future__ import annotations

from pathlib import Path

from experiments.commands.parser import Parser


def main(arguments: list[str]) -> int:
    """Draw results together. Returns the exit status."""
    parser = Parser(
        "plot",
        "Draw results together: latency against rate and throughput against latency where rates differ, else\n"
        "distributions. A folder of runs stands for all runs in it.",
        "servesim plot results/static_vs_continuous --out figures",
    )
    parser.add_argument("results", nargs="+", metavar="RESULT", help="a run's folder, a folder of runs, or a file")
    parser.add_argument("--out", type=Path, default=Path("figures"), metavar="DIR", help="for the figures (figures)")
    given = parser.parse(arguments)

    from experiments.commands.run import check_folder
    from experiments.plots import plot_sweep
    from experiments.results import load_results

    results = load_results(given.results)
    check_folder(given.out)
    for path in plot_sweep(results, given.out):
        print(path)
    return 0
