"""All-reduce between the GPUs of one machine: a process per rank, bounded in time. Standard library and torch only.

`python3 -m calibration.harness.allreduce` is one rank: NCCL on GPUs, gloo on processors (for tests; says nothing about
links). Not yet run on several GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from calibration.harness.backends import Built, Unsupported
from calibration.harness.environment import ROOT
from calibration.harness.grid import REDUCED_BYTES
from calibration.points import Point

SAMPLES, WARM_CALLS, BLOCK_US, MAX_REPEATS = 20, 5, 1000.0, 1000
LIMIT_S = 90.0

Timings = dict[int, list[tuple[float, int]]]  # by bytes: microseconds per call and calls of each block


class Reductions:
    """All-reduces over several ranks: all sizes are timed by one set of processes, and asked for one by one."""

    def __init__(self, dtype: str) -> None:
        self._dtype, self._failure = dtype, ""
        self._timings: Timings = {}

    def built(self, point: Point) -> Built:
        """What the processes measured for `point.bytes`. Raises Unsupported where they failed, and does so again."""
        if point.bytes not in self._timings and not self._failure:
            try:
                self._timings = timings(REDUCED_BYTES, point.ranks, self._dtype)
            except Unsupported as error:
                self._failure = str(error)
        if point.bytes not in self._timings:
            raise Unsupported(self._failure)
        return Built((), point.bytes, self._timings.pop(point.bytes))


def timings(
    sizes: Sequence[int], ranks: int, dtype: str, *, backend: str = "nccl", limit_s: float = LIMIT_S
) -> Timings:
    """Time all-reduces of `sizes` bytes per rank over `ranks` processes. Raises Unsupported where they fail or hang."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ending:
        command = [
            sys.executable,
            "-m",
            "calibration.harness.allreduce",
            f"--meet={folder}/meet",
            f"--backend={backend}",
        ]
        command += [f"--ranks={ranks}", f"--dtype={dtype}", *map(str, sizes)]
        loopback = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
        errors = ending.enter_context((Path(folder) / "errors").open("w+", encoding="utf-8", errors="replace"))
        processes = []
        for rank in range(ranks):
            process = subprocess.Popen(
                [*command, f"--rank={rank}"], cwd=ROOT, env={**os.environ, **loopback}, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, stderr=errors,
                start_new_session=True,  # Ctrl-C is for the one that started them
            )  # fmt: skip
            ending.enter_context(process)
            ending.callback(process.kill)
            processes.append(process)
        try:
            printed, _ = processes[0].communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise Unsupported(f"all-reduce over {ranks} ranks took longer than {limit_s:g} s") from None
        if processes[0].returncode:
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["no message"])[-1]
            raise Unsupported(f"all-reduce over {ranks} ranks: {last[:150]}")
    return {int(size): [(us, calls) for us, calls in blocks] for size, blocks in json.loads(printed).items()}


def _rank(given: argparse.Namespace) -> Timings:
    """Time every size on this rank, in step with the others."""
    import torch
    import torch.distributed as dist

    cuda = given.backend == "nccl"
    if cuda:
        torch.cuda.set_device(given.rank)
    where = torch.device("cuda", given.rank) if cuda else torch.device("cpu")
    dist.init_process_group(
        given.backend, init_method=f"file://{given.meet}", rank=given.rank, world_size=given.ranks,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    dtype: Any = getattr(torch, given.dtype)
    sync = torch.cuda.synchronize if cuda else lambda: None
    found = {}
    for size in given.sizes:
        x = torch.randn(max(size // dtype.itemsize, 1), device=where, dtype=dtype)
        _block_us(dist, x, WARM_CALLS, sync)
        fastest = min(_block_us(dist, x, WARM_CALLS, sync) for _ in range(3))
        repeats = torch.tensor([BLOCK_US / max(fastest, 1e-3)], device=where)
        dist.broadcast(repeats, 0)  # all ranks must make the same calls
        calls = min(math.ceil(repeats.item()), MAX_REPEATS)
        found[size] = [(_block_us(dist, x, calls, sync), calls) for _ in range(SAMPLES)]
    dist.destroy_process_group()
    return found


def _block_us(dist: Any, x: Any, calls: int, sync: Any) -> float:
    """Microseconds per call, on the wall clock: from when all ranks are ready until this one is done."""
    dist.barrier()
    sync()
    started = time.perf_counter_ns()
    for _ in range(calls):
        dist.all_reduce(x)
    sync()
    return (time.perf_counter_ns() - started) / 1e3 / calls


def main() -> None:
    """One rank; the first prints what it measured as JSON."""
    parser = argparse.ArgumentParser("python3 -m calibration.harness.allreduce")
    for option, kind in (("rank", int), ("ranks", int), ("meet", str), ("backend", str), ("dtype", str)):
        parser.add_argument(f"--{option}", type=kind, required=True)
    parser.add_argument("sizes", type=int, nargs="+")
    given = parser.parse_args()
    found = _rank(given)
    if given.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
