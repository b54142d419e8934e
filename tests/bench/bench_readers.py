"""How fast a million rows are read, and how much memory that takes above the requests themselves.

As a benchmark: pytest tests/bench/bench_readers.py --benchmark-enable
As a script, with the memory: python tests/bench/bench_readers.py [ROWS]
"""

from __future__ import annotations

import csv
import gzip
import sys
import tempfile
import time
import tracemalloc
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from workloads import load_trace
from workloads.shipped import shipped_path

ROWS = 1_000_000


def write_azure(path: Path, rows: int) -> Path:
    """The shipped conversation trace again and again, each time an hour later, until there are `rows` rows."""
    with gzip.open(shipped_path("azure-2023-conv"), "rt", newline="") as stream:
        data = list(csv.reader(stream))[1:]
    with path.open("w", newline="") as out:
        out.write("TIMESTAMP,ContextTokens,GeneratedTokens\r\n")
        for n in range(rows):
            lap, place = divmod(n, len(data))
            stamp, prompt, output = data[place]
            moved = datetime.fromisoformat(stamp) + timedelta(hours=lap)
            out.write(f"{moved:%Y-%m-%d %H:%M:%S.%f}0,{prompt},{output}\r\n")
    return path


def write_vidur(path: Path, rows: int) -> Path:
    """Float seconds with 17 digits, the slowest numbers to read exactly."""
    with path.open("w") as out:
        out.write("arrived_at,num_prefill_tokens,num_decode_tokens\n")
        out.writelines(f"{n / 7!r},{n % 4000 + 1},{n % 500 + 1}\n" for n in range(rows))
    return path


@pytest.mark.parametrize("write", [write_azure, write_vidur])
def test_read_100k_rows(benchmark, tmp_path, write):
    path = write(tmp_path / "trace.csv", 100_000)
    trace = benchmark.pedantic(load_trace, (path,), rounds=3)
    assert len(trace.requests) == 100_000


def main(rows: int) -> None:
    """Print seconds, and MB at the peak above what the requests take."""
    with tempfile.TemporaryDirectory() as folder:
        for write in (write_azure, write_vidur):
            path = write(Path(folder) / "trace.csv", rows)
            load_trace(path, limit=10)  # imports are not what is measured
            start, cpu_start = time.perf_counter(), time.process_time()
            requests = load_trace(path).requests
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
            del requests
            tracemalloc.start()
            requests = load_trace(path).requests
            held, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            line = f"{write.__name__[6:]}: {len(requests)} rows in {seconds:.2f} s ({cpu:.2f} s of CPU), "
            print(line + f"requests {held / 1e6:.0f} MB, peak above them {(peak - held) / 1e6:.0f} MB")
            del requests


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
