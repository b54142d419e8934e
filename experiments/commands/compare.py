"""`servesim compare`: results side by side, ours or those of `vllm bench serve --save-result`."""

from __future__ import annotations

import json

from experiments.commands.parser import Parser


def main(arguments: list[str]) -> int:
    """Compare two or more results. Returns the exit status."""
    parser = Parser(
        "compare",
        "Compare results: folders of ours, or files of `vllm bench serve --save-result`. The first is the reference.",
        "servesim compare results/quickstart/A results/quickstart/B",
    )
    parser.add_argument("results", nargs="+", metavar="RESULT", help="a run's folder, a folder of runs, or a file")
    parser.add_argument("--json", action="store_true", help="one JSON document, for two results")
    given = parser.parse(arguments)

    from experiments.compare import compare, compare_table
    from experiments.results import load_results

    results = load_results(given.results)
    print(json.dumps(compare(results), allow_nan=False) if given.json else compare_table(results))
    return 0
