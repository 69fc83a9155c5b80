#!/bin/sh
# Installs old releases of LanceDB, each into its own environment DIR/venv-lancedb-<version>, for `make test-long`.
# What cannot be installed is said loudly; its tests then say SKIPPED.
#
# usage: old_clients.sh PYTHON DIR VERSION…
set -u
python=$1
dir=$2
shift 2
for version; do
    venv="$dir/venv-lancedb-$version"
    [ -e "$venv/.ready" ] && continue
    # The oldest ones need the pyarrow of their time.
    case $version in
    0.1[0-9].*) more="pyarrow==17.0.0 numpy<2" ;;
    *) more="pyarrow==26.0.1 numpy==2.4.6" ;;
    esac
    # shellcheck disable=SC2086
    if "$python" -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check "lancedb==$version" $more &&
        "$venv/bin/python" -c 'import lancedb'; then
        touch "$venv/.ready"
    else
        echo "SKIPPED old_clients::wheels $version: lancedb==$version cannot be installed for $("$python" -V)" >&2
    fi
done
