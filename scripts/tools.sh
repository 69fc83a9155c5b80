#!/usr/bin/env bash
# Installs what compiling Squire needs and the machine lacks: protoc, a fast linker, a C compiler, cargo itself.
set -euo pipefail

missing=()
command -v protoc >/dev/null || missing+=(protobuf-compiler)
command -v mold >/dev/null || missing+=(mold)
command -v cc >/dev/null || missing+=(gcc)
command -v python3 >/dev/null || missing+=(python3)
if command -v python3 >/dev/null && ! python3 -c 'import ensurepip' 2>/dev/null; then missing+=(python3-venv); fi

if ! command -v cargo >/dev/null; then
  echo "cargo is missing: install Rust 1.94 or newer with rustup (or your system's package manager)" >&2
  exit 1
fi
# A browser for the tests of the HTML page; without one they say SKIPPED.
browser=()
if ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null && command -v apt-get >/dev/null; then
  browser=(chromium fonts-dejavu-core)
fi
[ ${#missing[@]} -eq 0 ] && [ ${#browser[@]} -eq 0 ] && exit 0

if command -v apt-get >/dev/null; then
  run=()
  if [ "$(id -u)" -ne 0 ]; then run=(sudo); fi
  echo "installing: ${missing[*]} ${browser[*]}"
  "${run[@]}" apt-get update -qq
  [ ${#missing[@]} -eq 0 ] || DEBIAN_FRONTEND=noninteractive "${run[@]}" apt-get install -y -qq "${missing[@]}"
  if [ ${#browser[@]} -gt 0 ]; then
    DEBIAN_FRONTEND=noninteractive "${run[@]}" apt-get install -y -qq --no-install-recommends "${browser[@]}" ||
      echo "chromium could not be installed: the tests of the HTML page say SKIPPED" >&2
  fi
elif command -v brew >/dev/null; then
  brew install protobuf
else
  echo "install these with your package manager, then run make again: ${missing[*]}" >&2
  exit 1
fi
