"""The latencies of every single request of a result, simulated or measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.results import REQUESTS, Result
from simulator.errors import ConfigError

Floats = NDArray[np.float64]
LATENCIES = ("ttft", "tpot", "e2el")
COLUMNS = {"arrival_ns": "arrival", "prompt_tokens": "input", "output_tokens": "output"}


def latencies_ms(result: Result) -> dict[str, Floats]:
    """TTFT, TPOT and E2EL of every completed request, milliseconds, sorted; without those that aren't on disk."""
    columns = per_request(result)
    found = {name: np.sort(columns[name][~np.isnan(columns[name])]) for name in LATENCIES if name in columns}
    return {name: values for name, values in found.items() if len(values)}


def per_request(result: Result) -> dict[str, Floats]:
    """Columns in order of arrival: ttft, tpot, e2el in ms (NaN where undefined), arrival in s, input, output tokens.

    From `requests.csv` beside the result, else from the arrays of `--save-detailed`; a column that is in neither is
    left out. Raises ConfigError where the table can't be read.
    """
    if result.get("out_dir"):
        return _from_table(Path(result["out_dir"]) / REQUESTS)
    return _from_arrays(result)


def _from_table(path: Path) -> dict[str, Floats]:
    names = [f"{name}_ms" for name in LATENCIES]
    try:
        table = pd.read_csv(path, usecols=[*names, *COLUMNS], dtype=np.float64)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a table of requests: {str(error).splitlines()[0]}") from None
    columns = {name: table[f"{name}_ms"].to_numpy() for name in LATENCIES}
    columns |= {ours: table[theirs].to_numpy() for theirs, ours in COLUMNS.items()}
    columns["arrival"] = columns["arrival"] / 1e9
    return columns


def _from_arrays(result: Result) -> dict[str, Floats]:
    errors = result.get("errors")
    if not isinstance(errors, list):
        return {}
    done = np.array([not error for error in errors], dtype=bool)
    arrays = {"arrival": "start_times", "input": "input_lens", "output": "output_lens", "ttft": "ttfts"}
    arrays["e2el"] = "latencies"
    columns = {
        ours: np.array(result[theirs], dtype=np.float64) for ours, theirs in arrays.items() if result.get(theirs)
    }
    for name in ("ttft", "e2el"):
        if name in columns:
            columns[name] = np.where(done, columns[name] * 1e3, np.nan)
    if "ttft" in columns and "e2el" in columns and "output" in columns:
        gaps = columns["output"] - 1
        rest = columns["e2el"] - columns["ttft"]
        columns["tpot"] = np.divide(rest, gaps, out=np.full(len(gaps), np.nan), where=gaps > 0)
    elif result.get("itls"):
        means = [np.mean(gaps) * 1e3 if ok and gaps else np.nan for gaps, ok in zip(result["itls"], done, strict=True)]
        columns["tpot"] = np.array(means)
    if "arrival" not in columns:
        return columns
    order = np.argsort(columns["arrival"], kind="stable")
    return {name: values[order] for name, values in columns.items()}
