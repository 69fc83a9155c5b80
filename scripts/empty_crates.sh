#!/bin/sh
# Gives every crate of the workspace that has only its manifest an empty source, so that its dependencies can be compiled alone
# (Dockerfile). --remove takes the empty sources away again.
set -eu
for manifest in $(find shared services tests -name Cargo.toml); do
  dir=$(dirname "$manifest")
  if [ "${1:-}" = --remove ]; then
    rm -rf "$dir/src"
    continue
  fi
  [ -e "$dir/src" ] && continue
  mkdir -p "$dir/src"
  echo > "$dir/src/lib.rs"
  case $dir in services/*|shared/registry/cli) echo 'fn main() {}' > "$dir/src/main.rs" ;; esac
done
