#!/usr/bin/env bash
# Collects the packages that a machine with a GPU lacks, for its Python, into an ignored folder that travels with the
# checkout. Needs pip and a registry; gpu_day.sh needs neither.
#
#     bash bench/gpu_wheels.sh [FOLDER] [PYTHON VERSION]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:-build/gpu_wheels} version=${2:-3.12} limit=$((64 << 20))
packages="ale-py gymnasium farama-notifications setuptools"

mkdir -p "$folder"
rm -f "$folder"/*.whl
platforms=$(printf -- '--platform manylinux_2_%s_x86_64 ' 39 35 34 31 28 27 24 17)
# shellcheck disable=SC2086
${PYTHON:-python3} -m pip download -q --no-deps --only-binary=:all: --implementation cp --python-version "$version" \
  $platforms --platform manylinux2014_x86_64 -d "$folder" $packages
git describe --always --abbrev=40 --dirty --exclude '*' > "$folder/commit"

tree=$(git ls-files -z | xargs -0 du -cb | tail -1 | cut -f1) wheels=$(du -sb "$folder" | cut -f1)
echo "$(ls "$folder"/*.whl | wc -l) wheels, $((wheels >> 10)) KiB; with the tree $(((tree + wheels) >> 20)) MiB of 64"
[ $((tree + wheels)) -le $limit ] || { echo "gpu_wheels: the tree and the wheels are over 64 MiB" >&2; exit 1; }
