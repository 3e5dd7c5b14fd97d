#!/usr/bin/env bash
# The wheel, from an empty folder under each Python, and the portable way beside Linux's:
#
#     make dist && bash bench/platforms.sh wheel python3.11 python3.12 python3.13     # ten quiet minutes
#     bash bench/platforms.sh portable                                                # eight
#
# Rows go to bench/results/platforms_wheel.md and bench/results/platforms_portable.md.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
what=${1:?wheel or portable}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=$root/bench/results/platforms_$what.md
unset PYTHONPATH

# try WHAT SHOWN COMMAND...: a row with its wall seconds and the last line that matches SHOWN
try() {
  local what=$1 shown=$2 begun status seconds
  shift 2
  begun=$(date +%s%N)
  "$@" > log 2>&1 < "${typed:-/dev/null}"
  status=$?
  seconds=$(awk "BEGIN {printf \"%.1f\", ($(date +%s%N) - $begun) / 1e9}")
  tr '\r' '\n' < log | grep -oE "$shown" | tail -1 | sed "s/.*/| $version | $what | $seconds | $status | & |/" | grep . \
    || echo "| $version | $what | $seconds | $status | |"
}

page() {
  polyplay play ttt --port 8799 & local served=$!
  for _ in $(seq 50); do curl -sf http://127.0.0.1:8799/ > page.html && break; sleep 0.2; done
  kill -INT $served; wait $served
  grep -o "<title>.*</title>" page.html
}

walk() {
  cd "$(mktemp -d -p "$work")" || exit 1
  version=$("$1" -c 'import platform; print(platform.python_version())')
  "$1" -m venv here
  try "install with atari, plots, watch" "^$" here/bin/pip install -q -c "$root/constraints.txt" "$wheel[atari,plots,watch]"
  PATH=$PWD/here/bin:$PATH
  try "train ppo --env CartPole-v1" "^done.*games" polyplay train ppo --env CartPole-v1 --run cart
  try "evaluate --episodes 20" "^score [0-9.]+" polyplay evaluate cart --episodes 20
  try "plot" ".*png" polyplay plot cart --out cart.png
  try "check CartPole-v1" "keeps to every rule.*" polyplay check CartPole-v1
  try "train a2c --preset quick --minutes 1" "minute is over.*games" polyplay train a2c --preset quick --minutes 1 --run pong
  try "train alphago_zero --minutes 0.5" "minutes are over.*games" \
    polyplay train alphago_zero --env game:tic_tac_toe --minutes 0.5 --run ttt
  echo b2 > moves
  typed=moves try "play --terminal" "agent plays.*" polyplay play ttt --terminal
  try "play" "title>.*<" page
}

# steps a second of whole runs, with the start and the end of all processes
pairs() {
  cd "$work" || exit 1
  for turn in 1 2 3; do
    for system in "ppo --env CartPole-v1 --steps 150k" "impala --env CartPole-v1 --steps 400k" "a2c --preset quick --frames 400k"; do
      for way in linux portable; do
        POLYPLAY_PORTABLE=$([ $way = portable ] && echo 1) PYTHONPATH=$root python -m polyplay train $system \
          --run "$way$turn${system%% *}" --precision float32 --no-tensorboard --quiet > log 2>&1
        python -c "import json, sys; s = json.load(open(sys.argv[1] + '/summary.json'))
print(f'| $system | $turn | $way |', round(s['steps'] / s['wall_seconds']), '|')" "$way$turn${system%% *}"
      done
    done
  done | sort -s -t'|' -k2,2
}

{
  echo "# $([ "$what" = wheel ] && echo "The wheel under each Python" || echo "The portable way beside Linux's")"
  echo
  echo "- command: \`$([ "$what" = wheel ] && echo "make dist && ")bash bench/platforms.sh $what$([ "$what" = wheel ] && echo " PYTHON …")\`"
  echo "- machine: $(lscpu | sed -n 's/^Model name: *//p'), $(nproc) cores, float32"
  echo "- commit: $(git -C "$root" rev-parse HEAD), $(date -u +%FT%TZ)"
  echo
  if [ "$what" = wheel ]; then
    wheel=$(ls "$root"/dist/*.whl)
    echo "| Python | command | seconds | exit status | last words |"
    echo "|---|---|--:|--:|---|"
    for python in "${@:2}"; do (walk "$python"); done
  else
    echo "| training | turn | way | steps/s |"
    echo "|---|--:|---|--:|"
    pairs
  fi
} | tee "$out"
