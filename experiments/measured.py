"""A measured run in the fields of our results, so that every tool takes either.

A folder holds one server run as the engine saw it: `requests.jsonl` (per request `input_toks`, `output_toks` and, on
one clock in seconds, `queued_ts`, `scheduled_ts`, `first_token_ts`, `last_token_ts`), `meta.json` (the engine's
configuration), and perhaps `workload.jsonl` (what was asked) and `timeseries.csv` (t, running, waiting, ...). Latencies
count from `queued_ts`; time zero is the smallest one. SGLang's `bench_serving` writes a JSON object per run.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ConfigError, raise_faults
from simulator.metrics import PERCENTILES, percentile_key

REQUESTS, META, WORKLOAD, TIMESERIES = "requests.jsonl", "meta.json", "workload.jsonl", "timeseries.csv"
CLOCKS = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
COUNTS = ("input_toks", "output_toks")
SERIES = ("t", "running", "waiting")

Fields = dict[str, Any]
Floats = NDArray[np.float64]


def shipped_runs() -> dict[str, Path]:
    """The folders of the measured runs that come with the package, by name."""
    data = Path(__file__).parent / "data"
    return {folder.name: folder for folder in sorted(data.iterdir()) if is_measured(folder)}


def find_run(path: Path | str) -> Path:
    """`path`, or the shipped run of that name where nothing lies there."""
    given = Path(path)
    return given if given.exists() else shipped_runs().get(str(path), given)


def is_measured(path: Path) -> bool:
    """Whether `path` is the folder of a measured run."""
    return path.is_dir() and (path / REQUESTS).exists()


def load_measured(folder: Path) -> Fields:
    """The run in `folder` as result fields, requests in order of arrival. Raises ConfigError with all its faults."""
    meta, rows = load_meta(folder), load_requests(folder)
    count = meta.get("num_requests")
    if isinstance(count, int) and count != len(rows):
        raise ConfigError(f"{folder / META}: num_requests = {count}: {REQUESTS} holds {len(rows)}")
    series = load_series(folder)
    queued, _, first, last = (np.array([row[name] for row in rows]) for name in CLOCKS)
    inputs, outputs = (np.array([row[name] for row in rows]) for name in COUNTS)
    start = queued.min()
    if last.max() <= start:
        raise ConfigError(f"{folder / REQUESTS}: the run takes no time: all stamps are {start}")
    fields: Fields = {
        "label": f"measured: {folder.resolve().name}",
        "backend": engine_name(meta),
        "model_id": str(meta.get("model") or ""),
        "num_prompts": len(rows),
        "request_rate": float((len(rows) - 1) / np.ptp(queued)) if np.ptp(queued) > 0 else "inf",
        "duration": float(last.max() - start),
        "completed": len(rows),
        "failed": 0,
        "input_lens": inputs.tolist(),
        "output_lens": outputs.tolist(),
        "start_times": (queued - start).tolist(),
        "ttfts": (first - queued).tolist(),
        "latencies": (last - queued).tolist(),
        "errors": [""] * len(rows),
        "measured": {"folder": str(folder), "timeseries": series},
    }
    return fields | _summary(fields)


def engine_name(meta: Fields) -> str:
    """The engine and its version as text."""
    return f"vLLM {meta['vllm_version']}" if meta.get("vllm_version") else "measured"


def _summary(fields: Fields) -> Fields:
    """Totals and latencies from the arrays, as `vllm bench serve` works them out."""
    seconds = fields["duration"]
    inputs, outputs = sum(fields["input_lens"]), sum(fields["output_lens"])
    found: Fields = {
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": fields["completed"] / seconds,
        "output_throughput": outputs / seconds,
        "total_token_throughput": (inputs + outputs) / seconds,
    }
    ttft, e2el = np.array(fields["ttfts"]), np.array(fields["latencies"])
    gaps = np.array(fields["output_lens"]) - 1
    tpot = (e2el - ttft)[gaps > 0] / gaps[gaps > 0]
    for name, values in (("ttft", ttft), ("tpot", tpot), ("e2el", e2el)):
        if len(values):
            found |= spread_ms(name, values * 1e3)
    return found


def spread_ms(name: str, values: Floats, percentiles: Sequence[float] = PERCENTILES) -> Fields:
    """Mean, median, population standard deviation and percentiles of milliseconds, under a result's keys."""
    found = {f"mean_{name}_ms": values.mean(), f"median_{name}_ms": np.median(values), f"std_{name}_ms": values.std()}
    points = np.percentile(values, percentiles)
    found |= {percentile_key(p, name): x for p, x in zip(percentiles, points, strict=True)}
    return {key: float(value) for key, value in found.items()}


def load_meta(folder: Path) -> Fields:
    """`meta.json` of a measured run. Raises ConfigError where it isn't a JSON object."""
    path = folder / META
    if not path.exists():
        raise ConfigError(f"{folder}: no {META} in it")
    meta = _json(path, _text(path), 1)
    if not isinstance(meta, dict):
        raise ConfigError(f"{path}: holds a {type(meta).__name__}, not an object")
    return meta


def load_requests(folder: Path) -> list[Fields]:
    """The rows of `requests.jsonl` in order of arrival (ties in the file's), checked; `row` is the place in it."""
    path = folder / REQUESTS
    faults: list[str] = []
    rows = [_request(f"{path}:{line}", row, faults) for line, row in read_jsonl(path, faults)]
    if not rows and not faults:
        faults.append(f"{path}: holds no requests")
    raise_faults(path, faults)
    for number, row in enumerate(rows):
        row["row"] = number
    return sorted(rows, key=lambda row: float(row["queued_ts"]))


def _request(where: str, row: Fields, faults: list[str]) -> Fields:
    broken = len(faults)
    for name in COUNTS:
        if not is_count(row.get(name)):
            faults.append(f"{where}: {name} = {shown(row, name)}: must be a whole number of at least 1")
    for name in CLOCKS:
        value = row.get(name)
        if name == "scheduled_ts" and value is None:
            row[name] = row.get("queued_ts")  # not every log has it, and no latency needs it
        elif not is_number(value):
            faults.append(f"{where}: {name} = {shown(row, name)}: must be a number of seconds")
    if len(faults) == broken:
        for early, late in pairwise(CLOCKS):
            if row[late] < row[early]:
                faults.append(f"{where}: {late} = {row[late]}: lies before {early} = {row[early]}")
    return row


def load_series(folder: Path) -> dict[str, list[float]] | None:
    """`timeseries.csv` by column, None where there is none: t in seconds, running and waiting requests."""
    path = folder / TIMESERIES
    if not path.exists():
        return None
    rows = list(csv.reader(_text(path).splitlines()))
    header = [name.strip() for name in rows[0]] if rows else []
    if missing := [name for name in SERIES if name not in header]:
        raise ConfigError(f"{path}:1: lacks the columns {', '.join(missing)}")
    faults: list[str] = []
    series: dict[str, list[float]] = {name: [] for name in SERIES}
    for line, row in enumerate(rows[1:], start=2):
        for name in SERIES:
            cell = row[header.index(name)] if len(row) == len(header) else ""
            try:
                value = float(cell)
            except ValueError:
                value = math.nan
            if not math.isfinite(value) or value < 0:
                faults.append(f"{path}:{line}: {name} = {cell}: must be a number of at least 0")
            series[name].append(value)
    raise_faults(path, faults)
    return series


def read_jsonl(path: Path, faults: list[str]) -> list[tuple[int, Fields]]:
    """(line, object) of every line of a JSON-lines file that isn't blank; what is no object becomes a fault."""
    found = []
    for line, text in enumerate(_text(path).splitlines(), start=1):
        if not text.strip():
            continue
        try:
            row = _json(path, text, line)
        except ConfigError as error:
            faults += error.faults
            continue
        if isinstance(row, dict):
            found.append((line, row))
        else:
            faults.append(f"{path}:{line}: must be an object")
    return found


def is_number(value: object) -> bool:
    """Whether `value` is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: object) -> bool:
    """Whether `value` is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def shown(row: Fields, name: str) -> str:
    """A value for a fault, short; `missing` where it isn't there."""
    text = json.dumps(row[name]) if name in row else "missing"
    return text if len(text) <= 40 else text[:37] + "..."


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file") from None


def _json(path: Path, text: str, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{line + error.lineno - 1}: not JSON: {error.msg}") from None
    except RecursionError:
        raise ConfigError(f"{path}:{line}: nested too deeply") from None


# ---- SGLang -------------------------------------------------------------------------------------------------------


def is_sglang(fields: Fields) -> bool:
    """Whether a JSON object is a result of SGLang's bench_serving: its name for the latency tells."""
    return "mean_e2e_latency_ms" in fields


def from_sglang(fields: Fields) -> Fields:
    """SGLang's names in ours; with --output-details its arrays too, the latency of each request being TTFT + gaps."""
    ours = {key.replace("_e2e_latency_ms", "_e2el_ms"): value for key, value in fields.items()}
    if "total_throughput" in ours:
        ours.setdefault("total_token_throughput", ours.pop("total_throughput"))
    if ours.get("request_rate") is None or ours["request_rate"] == math.inf:
        ours["request_rate"] = "inf"
    ttfts: Any = ours.get("ttfts")
    gaps: Any = ours.get("itls")
    if not (isinstance(ttfts, list) and isinstance(gaps, list) and len(ttfts) == len(gaps)):
        return ours
    if all(map(is_number, ttfts)) and all(isinstance(g, list) and all(map(is_number, g)) for g in gaps):
        ours["latencies"] = [ttft + sum(gap) for ttft, gap in zip(ttfts, gaps, strict=True)]
        ours["errors"] = [str(error or "") for error in ours.get("errors") or [""] * len(ttfts)]
    return ours
