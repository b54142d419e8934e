"""Results as text: the block that `vllm bench serve` prints, and one aligned table with a row per run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from experiments.labels import line_name, row_names, run_labels, sim_value
from experiments.results import Result, finite
from simulator.metrics import LATENCIES
from simulator.support import most_of, support_notes

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


def console_block(result: Result) -> str:
    """The ` Serving Benchmark Result ` block, line for line as `vllm bench serve` prints it, and what it doesn't say.

    Latencies that tell the run's length have GROWS behind them; those of tokens that nobody saw are `n/a`.
    """
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
            value = None if is_unseen(result, suffix) else finite(result.get(name + suffix))
            grows = f" ({GROWS})" if is_unsettled(result, suffix) else ""
            shown = f"{'n/a':<10}" if value is None else f"{f'{value:.2f}{grows}':<10}"
            lines.append(f"{f'{name.capitalize()} {metric.upper()} (ms):':<40} {shown}")
    return "\n".join([*lines, "=" * 50, *cautions([result])])


GROWS = "grows"  # in place of a latency that depends on how long the run was
Column = tuple[str, str, Callable[[Result], Any]]

_COLUMNS: tuple[Column, ...] = (
    ("req/s", "", lambda r: r.get("request_throughput")),
    ("tok/s", "", lambda r: r.get("output_throughput")),
    ("TTFT ms", "mean", lambda r: shown_latency(r, "mean_ttft_ms")),
    ("", "p99", lambda r: shown_latency(r, "p99_ttft_ms")),
    ("TPOT ms", "mean", lambda r: shown_latency(r, "mean_tpot_ms")),
    ("ITL ms", "p99", lambda r: shown_latency(r, "p99_itl_ms")),
    ("E2EL ms", "mean", lambda r: shown_latency(r, "mean_e2el_ms")),
    ("pre-", "empted", lambda r: sim_value(r, "preemptions")),
    ("busy", "%", lambda r: _percent(sim_value(r, "utilisation", "busy"))),
    ("rows", "live%", lambda r: _percent(sim_value(r, "utilisation", "useful_slots"))),
    ("KV", "%", lambda r: _percent(sim_value(r, "kv_usage", "mean"))),
)


WIDTH = 100  # columns of a terminal
_LEAST_NAME = 20  # columns for the name of a run, at least, even where the table gets wider for it


def comparison_table(results: Sequence[Result]) -> str:
    """One row per run, WIDTH columns wide or a few more, with notes where numbers need them."""
    head = [["", *(top for top, _, _ in _COLUMNS)], ["run", *(below for _, below, _ in _COLUMNS)]]
    cells = [[compact(value(result)) for _, _, value in _COLUMNS] for result in results]
    note = "tok/s: output tokens. rows: that compute a live token, of those held. KV: blocks taken, mean over time."
    return "\n".join([*_table(head, results, cells), note, *cautions(results)])


def _table(head: list[list[str]], results: Sequence[Result], cells: list[list[str]]) -> list[str]:
    """A table with the runs' names in front, and a line on what those leave out."""
    others = [[*row[1:]] for row in head] + cells
    room = WIDTH - sum(2 + max(map(len, column)) for column in zip(*others, strict=True))
    names, note = row_names(results, max(room, _LEAST_NAME))
    body = []
    for (first, *more), row in zip(names, cells, strict=True):
        body += [[first, *row], *([line, *[""] * len(row)] for line in more)]
    lines = aligned([*head, *body])
    lines.insert(2, "-" * max(map(len, lines)))
    return [*lines, *([note] if note else [])]


def cautions(results: Sequence[Result]) -> list[str]:
    """A line for whatever numbers of these runs need to be read with."""
    notes = []
    if late := _named(results, answers_late):
        notes.append(f"{late}: answered when the batch ends, so TTFT is E2EL and no tokens are streamed.")
    for label, result in zip(run_labels(results), results, strict=True):
        reasons = sim_value(result, "rejected")
        if isinstance(reasons, dict) and reasons:
            notes.append(f"{label}: rejected " + ", ".join(f"{n} ({reason})" for reason, n in reasons.items()))
        elif result.get("failed"):
            notes.append(f"{label}: {result['failed']} failed")
    if any(sim_value(r, "unstable") for r in results):
        notes.append(f"{GROWS}: with the queue, until the last request arrived. Such a latency tells the run's length.")
    if at_once := _named(results, lambda r: "sim" in r and r.get("request_rate") == "inf"):
        notes.append(f"{at_once}: all requests arrive at once, so TTFT and E2EL grow with their number.")
    notes += _leaning(results)
    bounds = {sim_value(r, "cost_model") for r in results if sim_value(r, "cost_kind") == "bound"}
    if bounds:
        notes.append(f"Times from {', '.join(sorted(map(str, bounds)))} are a lower bound, not an estimate.")
    return notes


def _leaning(results: Sequence[Result]) -> list[str]:
    """What runs lean on beyond measured points, part by part as in the one that does so most."""
    found = [result for result in results if sim_value(result, "cost_support", "notes")]
    if not found:
        return []
    names = _named(results, lambda r: bool(sim_value(r, "cost_support", "notes")))
    most = most_of([sim_value(result, "cost_support") for result in found])
    return [f"{names}: {note}." for note in support_notes(most, "" if len(found) == 1 else "up to ")]


def _named(results: Sequence[Result], which: Callable[[Result], bool]) -> str:
    """Those of `results`, by name; "every run" where it is all of several."""
    found = [result for result in results if which(result)]
    if len(found) == len(results) > 1:
        return "every run"
    return ", ".join(dict.fromkeys(map(line_name, found)))


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
    cells = []
    for result in results:
        shares = [_percent(sim_value(result, "waste", key)) for _, _, key in _WASTE]
        cells.append(["-" if share is None else f"{share:.1f}" for share in shares])
    notes = (
        "slots: of all, all the time; a table's `live%` is of rows held. waiting: for the batch, done or passed over.",
        "again: prefill after a preemption. reserved: and not used. blocks: the rest of last blocks.",
    )
    return "\n".join([*_table(head, results, cells), *notes])


def answers_late(result: Result) -> bool:
    """Whether a run's requests were answered when their batch ended."""
    return bool(sim_value(result, "respond_at") == "batch_end")


def is_unseen(result: Result, key: str) -> bool:
    """Whether `key` is a time between tokens of a run that streams none."""
    return key.endswith(("_tpot_ms", "_itl_ms")) and answers_late(result)


def is_unsettled(result: Result, key: str) -> bool:
    """Whether `key` is a latency of a run whose queue grew until the last request arrived, so that it tells the run's
    length; see `experiments.stability`."""
    return key.endswith(("_ttft_ms", "_e2el_ms")) and sim_value(result, "unstable") is True


def shown_latency(result: Result, key: str) -> Any:
    """A latency as a table shows it: GROWS or None where its number would mislead."""
    if is_unsettled(result, key):
        return GROWS
    return None if is_unseen(result, key) else result.get(key)


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
