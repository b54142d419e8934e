"""Results as text: the block that `vllm bench serve` prints, and one aligned table with a row per run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from experiments.results import Result, finite
from simulator.metrics import LATENCIES

_HEADERS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
_TOTALS = (
    ("Successful requests:", "completed"),
    ("Failed requests:", "failed"),
    ("Maximum request concurrency:", "max_concurrency"),
    ("Request rate configured (RPS):", "request_rate"),
    ("Benchmark duration (s):", "duration"),
    ("Total input tokens:", "total_input_tokens"),
    ("Total generated tokens:", "total_output_tokens"),
    ("Request throughput (req/s):", "request_throughput"),
    ("Request goodput (req/s):", "request_goodput"),
    ("Output token throughput (tok/s):", "output_throughput"),
    ("Peak output token throughput (tok/s):", "max_output_tokens_per_s"),
    ("Peak concurrent requests:", "max_concurrent_requests"),
    ("Total token throughput (tok/s):", "total_token_throughput"),
)
RATES = ("request_rate", "time_scale")  # words of a label that set the rate


def sim_value(result: Result, *keys: str) -> Any:
    """What the `sim` block holds below `keys`; None where it doesn't (vLLM's files have none)."""
    inner: Any = result.get("sim")
    for key in keys:
        inner = inner.get(key) if isinstance(inner, dict) else None
    return inner


def run_label(result: Result) -> str:
    """What to call a run beside others: its label, else its scheduler, else its back end or file."""
    choices = (result.get("label"), sim_value(result, "scheduler"), result.get("backend"), result.get("name"))
    return str(next(filter(None, choices), "run"))


def line_name(result: Result, apart: Sequence[str] = RATES) -> str:
    """What a run's label says beside the keys `apart`: runs of one line in a figure share it."""
    words = [word for word in run_label(result).split(", ") if word.partition("=")[0] not in apart]
    return ", ".join(words) or str(sim_value(result, "scheduler") or result.get("backend"))


def run_labels(results: Sequence[Result]) -> list[str]:
    """The labels of runs, told apart where they are equal: by request rate, else by number."""
    labels = [run_label(result) for result in results]
    if len(set(labels)) < len(labels):
        labels = [f"{label} @ {result.get('request_rate')}/s" for label, result in zip(labels, results, strict=True)]
    if len(set(labels)) < len(labels):
        labels = [f"{label} ({i})" for i, label in enumerate(labels, start=1)]
    return labels


def console_block(result: Result) -> str:
    """The ` Serving Benchmark Result ` block, line for line as `vllm bench serve` prints it."""
    lines = [f"{' Serving Benchmark Result ':=^50}"]
    for label, key in _TOTALS:
        value = finite(result.get(key))
        if value is not None:
            lines.append(f"{label:<40} {value:<10}" if isinstance(value, int) else f"{label:<40} {value:<10.2f}")
    for metric in LATENCIES:
        if f"mean_{metric}_ms" not in result:
            continue
        lines.append(f"{_HEADERS[metric]:-^50}")
        suffix = f"_{metric}_ms"
        percentiles = [key.removesuffix(suffix) for key in result if key.startswith("p") and key.endswith(suffix)]
        for name in ("mean", "median", *percentiles):
            value = finite(result.get(name + suffix))
            shown = f"{'n/a':<10}" if value is None else f"{value:<10.2f}"
            lines.append(f"{f'{name.capitalize()} {metric.upper()} (ms):':<40} {shown}")
    return "\n".join([*lines, "=" * 50])


GROWS = "grows"  # in place of a latency that depends on how long the run was
Column = tuple[str, str, Callable[[Result], Any]]

_COLUMNS: tuple[Column, ...] = (
    ("req/s", "", lambda r: r.get("request_throughput")),
    ("tok/s", "", lambda r: r.get("output_throughput")),
    ("TTFT ms", "mean", lambda r: _settled(r, "mean_ttft_ms")),
    ("", "p99", lambda r: _settled(r, "p99_ttft_ms")),
    ("TPOT ms", "mean", lambda r: _streamed(r, "mean_tpot_ms")),
    ("ITL ms", "p99", lambda r: _streamed(r, "p99_itl_ms")),
    ("E2EL ms", "mean", lambda r: _settled(r, "mean_e2el_ms")),
    ("pre-", "empted", lambda r: sim_value(r, "preemptions")),
    ("busy", "%", lambda r: _percent(sim_value(r, "utilisation", "busy"))),
    ("slots", "%", lambda r: _percent(sim_value(r, "utilisation", "useful_slots"))),
    ("KV", "%", lambda r: _percent(sim_value(r, "kv_usage", "mean"))),
)


def comparison_table(results: Sequence[Result]) -> str:
    """One row per run, at most 100 columns wide, with notes where numbers need them."""
    head = [["", *(top for top, _, _ in _COLUMNS)], ["run", *(below for _, below, _ in _COLUMNS)]]
    body = [
        [_title(label), *(compact(value(result)) for _, _, value in _COLUMNS)]
        for label, result in zip(run_labels(results), results, strict=True)
    ]
    lines = aligned([*head, *body])
    lines.insert(2, "-" * max(map(len, lines)))
    return "\n".join([*lines, *_notes(results)])


def _notes(results: Sequence[Result]) -> list[str]:
    notes = [
        "tok/s: output tokens. slots: rows that compute a live token, of those held. KV: blocks taken, mean over time."
    ]
    late = dict.fromkeys(line_name(result) for result in results if _answers_late(result))
    if late:
        notes.append(f"{', '.join(late)}: answered when the batch ends, so TTFT is E2EL and no tokens are streamed.")
    for label, result in zip(run_labels(results), results, strict=True):
        reasons = sim_value(result, "rejected")
        if isinstance(reasons, dict) and reasons:
            notes.append(f"{label}: rejected " + ", ".join(f"{n} ({reason})" for reason, n in reasons.items()))
        elif result.get("failed"):
            notes.append(f"{label}: {result['failed']} failed")
    if any(sim_value(r, "unstable") for r in results):
        notes.append(f"{GROWS}: with the queue, until the last request arrived. Such a latency tells the run's length.")
    bounds = {sim_value(r, "cost_model") for r in results if sim_value(r, "cost_kind") == "bound"}
    if bounds:
        notes.append(f"Times from {', '.join(sorted(map(str, bounds)))} are a lower bound, not an estimate.")
    return notes


_WASTE = (
    ("slots:", "useful", "slots_useful"),
    ("", "padding", "slots_padding"),
    ("", "waiting", "slots_waiting"),
    ("", "again", "slots_recomputed"),
    ("", "empty", "slots_empty"),
    ("KV:", "used", "kv_used"),
    ("", "reserved", "kv_reserved_unused"),
    ("", "blocks", "kv_fragmentation"),
    ("", "free", "kv_free"),
)


def waste_rows(results: Sequence[Result]) -> str:
    """What slot time and KV memory went to, a row per run, in per cent that add up to 100 for each."""
    head = [["", *(top for top, _, _ in _WASTE)], ["% of the whole run", *(below for _, below, _ in _WASTE)]]
    body = []
    for label, result in zip(run_labels(results), results, strict=True):
        shares = [_percent(sim_value(result, "waste", key)) for _, _, key in _WASTE]
        body.append([_title(label), *("-" if share is None else f"{share:.1f}" for share in shares)])
    lines = aligned([*head, *body])
    lines.insert(2, "-" * max(map(len, lines)))
    notes = (
        "waiting: for the batch, done or passed over. again: prefill after a preemption. reserved: and not used.",
        "blocks: the rest of last blocks.",
    )
    return "\n".join([*lines, *notes])


def _answers_late(result: Result) -> bool:
    return bool(sim_value(result, "respond_at") == "batch_end")


def _settled(result: Result, key: str) -> Any:
    return GROWS if sim_value(result, "unstable") else result.get(key)


def _streamed(result: Result, key: str) -> Any:
    return None if _answers_late(result) else result.get(key)


def _percent(share: Any) -> float | None:
    number = finite(share)
    return None if number is None else 100.0 * number


def compact(value: Any) -> str:
    """A number in about four characters of significance, `-` where there is none, GROWS as it is."""
    number = finite(value)
    if number is None:
        return value if value == GROWS else "-"
    if isinstance(number, int) or abs(number) >= 100:
        return f"{number:.0f}"
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines: the first column to the left, numbers to the right, two spaces between."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
    return lines


def _title(label: str, width: int = 24) -> str:
    """A label for a table: rates as `8/s`, and shortened in its middle, as labels differ at their ends."""
    text = re.sub(r"\brequest_rate=([0-9.e+]+)", r"\1/s", label)
    return text if len(text) <= width else f"{text[: width // 2 - 2]}…{text[-(width - width // 2 + 1) :]}"
