#!/usr/bin/env bash
# Makes a neglected lake, plans, sweeps, and sweeps again.
set -euo pipefail
bin=$1
lake=$2

step() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }
run() { step "squire-maintenance $*"; "$bin/squire-maintenance" "$@"; }
# A finding of severity `error` is exit 3 by design: the demo shows it and goes on.
shown() { run "$@" || { code=$?; [ "$code" -eq 3 ] || exit "$code"; }; }
size() { du -sh --exclude=_squire "$lake" | cut -f1; }

run demo "$lake"
before=$(size)
shown plan "$lake"
shown sweep "$lake" --yes
middle=$(size)
shown sweep "$lake" --yes
printf '\nOn disk: %s before, %s after the first sweep, %s after the second (which had nothing to do).\n' "$before" "$middle" "$(size)"
printf 'Look closer: squire-maintenance why %s/acme-gold/catalogue\n' "$lake"
