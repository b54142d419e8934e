"""The command line: exit statuses, one line per fault, JSON alone on standard output."""

# ruff: noqa: E501
from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.cli import COMMANDS, main

ROOT = Path(__file__).parents[2]
CONFIG = """
model: llama-3.1-8b
gpu: a100-80gb
load: {num_prompts: 20, request_rate: 20, input_len: 100, output_len: 10}
figures: false
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG)


def servesim(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-m", "experiments", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, **options,
    )  # fmt: skip


def test_run_json_is_one_document_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "run",
        "c.yaml",
        "sweep={scheduler: [static, chunked], engine.max_num_batched_tokens: [512]}",
        "--json",
    ]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    runs = json.loads(out)["runs"]
    assert [run["sim"]["scheduler"] for run in runs] == ["static", "chunked"]
    assert "notice: engine.max_num_batched_tokens changes nothing: scheduler static" in err
    for run in runs:
        assert run["name"] == "c"
        assert Path(run["out_dir"], "result.json").is_file()
        assert {
            "version", "scheduler", "cost_model", "seed", "digest", "iterations", "iterations_by_mode", "preemptions",
            "rejected", "utilisation", "kv_usage", "wall_s", "fast_forward",
        } <= set(run["sim"])  # fmt: skip
    assert main(arguments) == 0
    again = json.loads(capsys.readouterr().out)["runs"]
    assert again == runs


def test_run_prints_a_table_and_where_the_results_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "c.yaml", "--out", "r"]) == 0
    out, err = capsys.readouterr()
    assert "Serving Benchmark Result" in out
    assert "results: r/c/" in out
    assert err == ""
    assert main(["run", "c.yaml", "sweep.seed=[1, 2]", "--out", "r"]) == 0
    out, err = capsys.readouterr()
    assert "seed=1" in out
    assert Path("r/c/summary.csv").is_file()


def test_options_and_overrides_in_any_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--json", "c.yaml", "seed=1", "--out", "r", "host_overhead_us=3"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["sim"]["seed"] == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["rn"], "servesim: rn: unknown command; did you mean 'run'?"),
        (["xyz"], "servesim: xyz: unknown command; commands are run, compare"),
        (["run"], "servesim run: the following arguments are required: config\n"),
        (["config", "cp", "quickstart", "newdir/"], "newdir/: no such folder"),
        (
            ["kv", "explain", "--model", "llama-3.1-8b", "--gpu", "h100", "--max-model-len", "9999999"],
            "--max-model-len: 9999999: must be at most the 131072 tokens that llama-3.1-8b takes",
        ),
        (["run", "c.yaml", "seed=1", "seed=2"], "override seed=2: seed is given twice, first as seed=1"),
        (["run", "c.yaml", "--jsn"], "servesim run: --jsn: unknown option; did you mean '--json'?"),
        (["run", "c.yaml", "--out"], "servesim run: argument --out: expected one argument"),
        (["run", "quickstrat"], "quickstrat: neither a file nor a shipped config; did you mean 'quickstart'?"),
        (["run", "no/such.yaml"], "no/such.yaml: no such file"),
        (["run", "."], ".: a folder, where a config file is expected"),
        (["run", "c.yaml", "engine.max_num_seqs=0"], "override engine.max_num_seqs=0: must be at least 1"),
        (["run", "c.yaml", "nonsense"], "override nonsense: must be key.path=value"),
        (["run", "c.yaml", "--out", "c.yaml"], "--out c.yaml: a file is there, where a folder is expected"),
        (["run", "c.yaml", "--out", "c.yaml/x"], "--out c.yaml/x: can't be written: Not a directory"),
        (["run", "c.yaml", "engine.max_model_len=20"], "c: no request completed, of 20: "),
        (["compare", "c.yaml"], "c.yaml"),
        (["plot", "nowhere"], "nowhere"),
        (["list", "scheduler"], "did you mean 'schedulers'?"),
        (["list"], "servesim list: the following arguments are required"),
        (["trace", "info", "nowhere.csv"], "nowhere.csv"),
        (["trace", "info", "c.yaml", "--unit", "sec"], "'sec' must be one of s, ms, us, ns"),
        (["trace", "info", "c.yaml", "--block-size", "0"], "'0' must be a whole number of at least 1"),
        (["trace", "inf", "c.yaml"], "did you mean 'info'?"),
        (["config", "valid", "c.yaml"], "did you mean 'validate'?"),
        (["config", "validate"], "servesim config validate: needs a CONFIG"),
        (["config", "schema", "c.yaml"], "servesim config schema: takes no argument"),
        (["config", "cp", "quickstart", "c.yaml"], "c.yaml: exists already"),
        (["config", "cp", "quickstart", "a", "b"], "servesim config cp: takes one file"),
        (["kv", "explain", "--model", "llama-3.1-8b"], "the following arguments are required: --gpu"),
        (["kv", "explain", "--model", "llama-3.1-9b", "--gpu", "h100"], "did you mean 'llama-3.1-8b'?"),
        (["kv", "explain", "--model", "llama-3.1-70b", "--gpu", "h100"], "leaves no room for the KV cache"),
        (["kv", "explain", "--model", "llama-3.1-8b", "--gpu", "h100", "--block-size", "-1"], "'-1' must be a whole number"),
        (["kv", "explain", "--model", "llama-3.1-8b", "--gpu", "h100", "--gpu-memory-utilization", "2"], "'2' must be a number above 0"),
    ],
)  # fmt: skip
def test_what_the_user_got_wrong_is_one_line_and_status_2(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert expected in err
    assert len(err.splitlines()) == 1


def test_all_faults_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "c.yaml", "seed=x", "engine.foo=1", "gpu=a101", "bad"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4


def test_all_faults_of_a_command_line_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["kv", "explain", "--model", "x", "--gpu", "y", "--block-size", "0", "--gpu-memory-utilization", "3"]) == 2
    )
    options = [line.split()[3] for line in capsys.readouterr().err.splitlines()]
    assert options == ["--model:", "--gpu:", "--block-size:", "--gpu-memory-utilization:"]


def test_what_a_scheduler_prints_is_no_part_of_the_document() -> None:
    Path("loud.py").write_text(
        "from simulator.schedulers.chunked import Chunked\n"
        "class Loud(Chunked):\n    name = 'loud'\n"
        "    def plan(self, view):\n        print('hello')\n        print('no line end', end='')\n"
        "        return super().plan(view)\n"
    )
    done = servesim("run", "c.yaml", "scheduler=loud:Loud", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["runs"][0]["sim"]["scheduler"] == "loud"
    assert "hello" in done.stderr


def test_a_reader_of_errors_who_leaves_stops_no_run() -> None:
    script = f"{sys.executable} -m experiments run c.yaml 'sweep={{seed: [1, 2, 3]}}' 2>&1 | head -0"
    subprocess.run(script, shell=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert len(list(Path("results/c").glob("*/result.json"))) == 3


def test_a_closed_output_is_no_defect() -> None:
    done = subprocess.run(
        f"{sys.executable} -m experiments list gpus >&-",
        shell=True, capture_output=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"example: servesim {command}" in capsys.readouterr().out


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {command} " in out for command in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("servesim ")
    assert main([]) == 2


@pytest.mark.parametrize("kind", ["schedulers", "cost-models", "models", "gpus", "traces", "configs"])
def test_list(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 3
    assert all(len(line.split(None, 1)) == 2 for line in lines)


def test_config_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "validate", "quickstart"]) == 0
    assert "valid, 4 runs" in capsys.readouterr().out
    assert main(["config", "cp", "quickstart", "mine.yaml"]) == 0
    assert main(["config", "validate", "mine.yaml", "trace.limit=9"]) == 0
    capsys.readouterr()
    assert main(["config", "show", "c.yaml", "seed=7"]) == 0
    shown = capsys.readouterr().out
    assert "seed: 7  # override" in shown
    Path("shown.yaml").write_text(shown)
    assert main(["config", "validate", "shown.yaml"]) == 0
    capsys.readouterr()
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=_refuse)["title"] == "servesim config"
    assert main(["config", "show", "c.yaml", "sweep.seed=[1, 2]"]) == 0
    assert "Running this file" not in capsys.readouterr().out


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def test_compare_two_runs(capsys: pytest.CaptureFixture[str]) -> None:
    folders = []
    for seed in (1, 2):
        assert main(["run", "c.yaml", f"seed={seed}", "--json"]) == 0
        folders.append(json.loads(capsys.readouterr().out)["runs"][0]["out_dir"])
    assert main(["compare", *folders, "--json"]) == 0
    metrics = {entry["metric"]: entry for entry in json.loads(capsys.readouterr().out)["metrics"]}
    assert set(metrics["mean_ttft_ms"]) == {"metric", "a", "b", "error_pct"}
    assert main(["compare", *folders]) == 0
    assert "mean_ttft_ms" in capsys.readouterr().out
    assert main(["plot", *folders, "--out", "f"]) == 0
    assert all(Path(line).is_file() for line in capsys.readouterr().out.splitlines())


def test_trace_info(capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,10,3\n2.5,20,0\n")
    assert main(["trace", "info", "t.csv", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["rows_read"], info["requests"], info["dropped"]) == (2, 1, {"zero_output": 1})
    assert main(["trace", "info", "t.csv", "--zero-output", "error"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_kv_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kv", "explain", "--model", "llama-3.1-8b", "--gpu", "a100-80gb", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kv_bytes_per_token"] == 131072


def test_what_is_missing_is_status_3(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["run", "c.yaml", "gpu=local"]) == 3
    assert "pip install -e '.[calibrate]'" in capsys.readouterr().err


class _Cuda:
    def __init__(self, name: str, memory: int) -> None:
        self.name, self.total_memory, self.cuda = name, memory, self

    def is_available(self) -> bool:
        return self.total_memory > 0

    def get_device_properties(self, device: int) -> _Cuda:
        return self


@pytest.mark.parametrize(
    ("device", "gib", "status", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", 79.2, 0, "gpu: a100-80gb  # derived: the GPU of this machine"),
        ("NVIDIA H100 80GB HBM3", 79.1, 0, "gpu: h100"),
        ("NVIDIA H100 PCIe", 79.1, 2, "no shipped specification"),
        ("NVIDIA GeForce RTX 4090", 23.6, 0, "gpu: rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 15.7, 2, "no shipped specification"),
        ("Tesla T4", 14.6, 2, "no shipped specification"),
        ("none", 0, 3, "no CUDA device on this machine"),
    ],
)
def test_the_local_gpu_is_found_by_its_name(
    device: str, gib: float, status: int, expected: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", _Cuda(device, int(gib * 2**30)))  # type: ignore[arg-type]
    assert main(["config", "show", "c.yaml", "gpu=local"]) == status
    assert expected in "".join(capsys.readouterr())


def test_a_users_failing_scheduler_is_status_1_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_broken.py").write_text(
        "from simulator.schedulers.base import Scheduler\n"
        "class Broken(Scheduler):\n    name = 'broken'\n    def plan(self, view):\n        return view.nothing\n"
    )
    assert main(["run", "c.yaml", "scheduler=my_broken:Broken"]) == 1
    err = capsys.readouterr().err
    assert "PolicyError: scheduler my_broken:Broken" in err
    assert len(err.splitlines()) == 1


def test_a_defect_is_status_1_in_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("experiments.run.simulate", broken)
    assert main(["run", "c.yaml"]) == 1
    assert capsys.readouterr().err.startswith("servesim: defect: RuntimeError: two lines (a bug in servesim")
    monkeypatch.setenv("SERVESIM_DEBUG", "1")
    assert main(["run", "c.yaml"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_full_disk_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "r/x")

    monkeypatch.setattr("experiments.run.write_result", full)
    assert main(["run", "c.yaml"]) == 2
    assert capsys.readouterr().err == "servesim: r/x: No space left on device\n"


def test_a_folder_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "c.yaml", "--out", "/proc/nowhere"]) == 2
    assert "--out /proc/nowhere: can't be written" in capsys.readouterr().err


# ---- in a process of its own


def test_the_module_runs_and_its_status_is_the_process_status() -> None:
    done = servesim("run", "c.yaml", "--json")
    assert (done.returncode, done.stderr) == (0, "")  # no progress bar in a pipe
    assert len(json.loads(done.stdout)["runs"]) == 1
    assert servesim("run", "nope").returncode == 2


def test_the_digest_is_the_same_in_every_process() -> None:
    digests = set()
    for seed in ("0", "1", "2"):
        os.environ["PYTHONHASHSEED"] = seed
        done = servesim("run", "c.yaml", "--json", "--out", seed)
        digests.add(json.loads(done.stdout)["runs"][0]["sim"]["digest"])
    del os.environ["PYTHONHASHSEED"]
    assert len(digests) == 1


def test_a_reader_that_has_enough_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m experiments config schema | head -1; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.stdout == "{\n0\n"
    assert done.stderr == ""


def test_an_interrupt_is_status_130() -> None:
    Path("long.yaml").write_text(CONFIG.replace("num_prompts: 20", "num_prompts: 2000000"))
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments", "run", "long.yaml"],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not Path("results").exists():  # made just before the run begins
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "servesim: interrupted; results that were complete are kept"
    assert "Traceback" not in err
    assert not list(Path("results").rglob("*.json"))


def test_a_terminal_gets_a_progress_bar() -> None:
    Path("long.yaml").write_text(CONFIG.replace("num_prompts: 20", "num_prompts: 3000"))
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments", "run", "long.yaml"],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, stderr=theirs, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # how a pseudo-terminal says that the other end is closed
        while data := os.read(ours, 65536):
            shown += data
    os.close(ours)
    text = shown.decode()
    assert process.wait(timeout=60) == 0
    assert "/3000 requests" in text
    assert "s simulated" in text
    assert "x real time, " in text


def test_light_commands_import_nothing_heavy() -> None:
    script = (
        "import sys; from experiments.cli import main; status = main({arguments}); "
        "heavy = {{'pandas', 'matplotlib', 'torch', 'pydantic'}} & set(sys.modules); sys.exit(status or len(heavy))"
    )
    for arguments in (["--help"], ["list", "gpus"], ["list", "schedulers"], ["list", "models"], ["list", "traces"]):
        done = subprocess.run(
            [sys.executable, "-c", script.format(arguments=arguments)],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, arguments
