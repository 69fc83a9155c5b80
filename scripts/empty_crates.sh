#!/bin/sh
# Gives every target that the workspace's manifests name and that has no source an empty one, so that the dependencies can be
# compiled alone (Dockerfile). --remove takes away what was made, and nothing else.
set -eu
made=.empty_crates
if [ "${1:-}" = --remove ]; then
  while read -r file; do rm -f "$file"; done < "$made"
  rm -f "$made"
  exit 0
fi
give() {
  [ -e "$1" ] && return
  mkdir -p "$(dirname "$1")"
  printf '%s\n' "$2" > "$1"
  echo "$1" >> "$made"
}
: > "$made"
for manifest in $(find shared services tests -name Cargo.toml); do
  dir=$(dirname "$manifest")
  case $dir in services/*|shared/registry/cli) give "$dir/src/main.rs" 'fn main() {}' ;; esac
  give "$dir/src/lib.rs" ''
  # The named benches, examples and tests: their path, or the default one.
  awk '
    function out() { if (kind != "" && name != "") print (path != "" ? path : kind "/" name ".rs"); kind = name = path = "" }
    /^\[/ { out() }
    /^\[\[bench\]\]/ { kind = "benches" }
    /^\[\[example\]\]/ { kind = "examples" }
    /^\[\[test\]\]/ { kind = "tests" }
    kind != "" && /^name *=/ { split($0, a, "\""); name = a[2] }
    kind != "" && /^path *=/ { split($0, a, "\""); path = a[2] }
    END { out() }' "$manifest" | while read -r path; do give "$dir/$path" 'fn main() {}'; done
done
