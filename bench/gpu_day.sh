#!/usr/bin/env bash
# Runs gpu_day.py on a machine with a GPU and no network: what gpu_wheels.sh collected goes into a folder of its own,
# beside the machine's Python.
#
#     bash bench/gpu_day.sh [WHEELS] [OUT] [MORE OPTIONS OF gpu_day.py …]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
wheels=${1:-build/gpu_wheels} out=${2:-build/gpu_out}
shift $(($# < 2 ? $# : 2))
python=${PYTHON:-python3} site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
"$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$wheels"/*.whl
export PYTHONPATH="$site:$PWD" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=
mkdir -p "$out"
# Compiles the loops that the later parts need, beside those that need few cores.
timeout 110 "$python" bench/gpu_day.py --device cpu --short --out "$site/rehearsal" > "$out/rehearsal.log" 2>&1 &
"$python" bench/gpu_day.py --out build/gpu_results --archive "$out/gpu_day.tar.gz" --commit "$(cat "$wheels/commit")" "$@"
