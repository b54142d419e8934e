"""`servesim compare`: results side by side, or a result against a measured run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from experiments.commands.parser import Parser


def main(arguments: list[str]) -> int:
    """Compare two or more results. Returns the exit status."""
    parser = Parser(
        "compare",
        "Compare results. The first is the reference, unless the last of two is a measured run: then that is, errors\n"
        "are stated per metric and per request, and figures are drawn. Measured are a result of `servesim live`, a\n"
        "file of `vllm bench serve --save-result --save-detailed`, one of SGLang's bench_serving, or a folder with\n"
        "requests.jsonl and meta.json.",
        "servesim compare results/rtx4090_vllm/A measured/rtx4090",
    )
    parser.add_argument("results", nargs="+", metavar="RESULT", help="a run's folder, a folder of runs, or a file")
    parser.add_argument("--json", action="store_true", help="one JSON document, for two results")
    parser.add_argument("--out", type=Path, metavar="DIR", help="for figures beside a measured run (default: RESULT)")
    given = parser.parse(arguments)

    from experiments.accuracy import accuracy, accuracy_table
    from experiments.compare import compare, compare_table
    from experiments.results import is_live, load_results

    results = load_results(given.results)
    simulated = ["sim" in result and not is_live(result) for result in results]
    if simulated != [True, False]:
        print(json.dumps(compare(results), allow_nan=False) if given.json else compare_table(results))
        return 0
    result, measured = results
    if given.json:
        print(json.dumps(accuracy(result, measured), allow_nan=False))
    else:
        print(accuracy_table(result, measured))
    folder = given.out or (Path(result["out_dir"]) if result["out_dir"] else None)
    if folder is not None:
        from experiments.accuracy_plots import plot_accuracy
        from experiments.commands.run import check_folder

        check_folder(folder)
        for path in plot_accuracy(result, measured, folder):
            print(f"figure: {path}", file=sys.stderr)
    return 0
