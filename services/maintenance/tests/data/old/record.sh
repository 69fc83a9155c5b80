#!/bin/sh
# Records what each release of LanceDB leaves: <version>.tar.gz with the tables of `tests/py/old_clients.py write`.
#
# usage: record.sh VENVS [VERSION…]     VENVS holds venv-lancedb-<version>/ (`make old-clients`); default: all recorded ones
#
# The archives keep file times. Tests that count ages rest on the times in them: after recording anew, change RECORDED_BEFORE
# and RECORDED_AFTER in tests/it/old_clients.rs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venvs=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for version in ${*:-0.22.1 0.23.0 0.24.0 0.24.3 0.30.2}; do
    "$venvs/venv-lancedb-$version/bin/python" "$here/../../../../../tests/py/old_clients.py" write "$work/db"
    tar -C "$work/db" --sort=name --owner=0 --group=0 --numeric-owner -cf - . | gzip -9n >"$here/$version.tar.gz"
    ls -l "$here/$version.tar.gz"
done
