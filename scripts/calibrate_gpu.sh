#!/usr/bin/env bash
# Times a model's kernels on this machine's GPU and leaves everything in one folder, within eight minutes:
#
#     scripts/calibrate_gpu.sh [FOLDER]
#
# Needs Python 3.11 or newer with torch; where numpy and scipy are there as well, it fits a profile and validates it.
# MODEL (llama-3.1-8b), TP (1), DTYPE, DEVICE (cuda), BUDGET (6m) and PYTHON (python3) may be set in the environment. A
# folder of an earlier run is gone on with. BUDGET=30s tries it out: one point of each operation goes first, and the
# first line says what carries out attention, the last ones what was skipped, not captured in a graph, or throttled.
set -uo pipefail

model=${MODEL:-llama-3.1-8b} device=${DEVICE:-cuda} budget=${BUDGET:-6m} tp=${TP:-1} python=${PYTHON:-python3}
out=$(realpath -m "${1:-measured/$device-$model-tp$tp}")
cd "$(dirname "$0")/.."

say() { echo "== $*" >&2; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { say "needs Python 3.11 or newer"; exit 3; }
mkdir -p "$out" || exit 2

if command -v nvidia-smi > /dev/null; then
    timeout 10 nvidia-smi -q > "$out/nvidia-smi.txt" 2>&1 || say "nvidia-smi -q failed; see $out/nvidia-smi.txt"
fi
timeout 10 "$python" -m pip freeze > "$out/packages.txt" 2> /dev/null || rm -f "$out/packages.txt"

say "timing $model on $device for at most $budget; Ctrl-C keeps what is there"
seconds='import sys; t = sys.argv[1]; print(int(float(t.rstrip("smh")) * {"m": 60, "h": 3600}.get(t[-1], 1)))'
limit=$("$python" -c "$seconds" "$budget" 2> /dev/null) || limit=0
for left in "$budget" again again; do
    [ "$left" != again ] || left=$((limit - SECONDS))s
    # The budget is looked at between samples: a kernel that never ends is ended from here.
    timeout --foreground -k 10 $((limit + 60)) \
        "$python" -m calibration.measure --model "$model" --device "$device" --tp "$tp" --budget "$left" --resume \
            ${DTYPE:+--dtype "$DTYPE"} --out "$out"
    status=$?
    # 1: a point has made the GPU unusable to that process. It is on record, so the next one goes on without it.
    { [ "$status" -eq 1 ] && [ -f "$out/meta.json" ] && [ $((limit - SECONDS)) -gt 30 ]; } || break
    say "going on for what is left of $budget"
done
[ "$status" -eq 0 ] || exit "$status"

if "$python" -c 'import matplotlib, numpy, pydantic, scipy, simpy, yaml' 2> /dev/null; then
    say "fitting and validating"
    timeout 40 "$python" -m experiments calibrate fit "$out" &&
        timeout 40 "$python" -m experiments calibrate validate "$out"
    exit
fi
say "the fit needs the packages of servesim; where they are installed:"
echo "    servesim calibrate fit $out && servesim calibrate validate $out"
