#!/usr/bin/env bash
# Everything of this project that needs a GPU, in one command and without a network, in some 20 minutes on 16 cores:
#
#   scripts/gpu_check.sh              runs every stage below
#   scripts/gpu_check.sh STAGE...     runs these stages only
#   scripts/gpu_check.sh --dry-run    lists the stages and exits with status 2
#
# Needed: a GPU, nvcc, cmake, ninja or make, and a Python with jax (CUDA), nanobind, pytest, pytest-xdist, pytest-timeout,
# hypothesis. Used where present: torch, compute-sanitizer, ncu. Clocks and power are read, never set.
#
# Environment: OUT     where results go (default build/gpu): log.txt, summary.txt, bench.json, golden.tar.gz,
#                      gpu_tests.xml, ncu.txt; never more than 8 files
#              PYTHON  default python3
#              JAX_MOYE_CUDA_ARCHS  default native: this machine's
#              SECONDS_IN_ALL       default 1620
#              JAX_MOYE_COMMIT      what results call this version, where there is no git to ask
#
# Exit status: 0 if every stage passed, 1 if one failed, 2 without a GPU. A stage that ran out of time has failed, except
# `rest`, which is cut where the time is over. After a failed build nothing else runs.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
script=$root/scripts/$(basename "${BASH_SOURCE[0]}")
cd "$root"

PYTHON=$(command -v "${PYTHON:-python3}") || { echo "gpu_check: no ${PYTHON:-python3}" >&2; exit 2; }
OUT=${OUT:-build/gpu}
[[ $OUT == /* ]] || OUT=$root/$OUT
build=$root/build/gpu_check
jobs=$(nproc)
export PYTHON OUT
export JAX_MOYE_CUDA_ARCHS=${JAX_MOYE_CUDA_ARCHS:-native}
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export XLA_PYTHON_CLIENT_PREALLOCATE=false # several processes, and torch, share the card

# ---- Stages: name, limit in seconds, what it does. In this order.
stages="
environment 40   versions of everything, and that JAX sees the GPU
build       300  cmake in build/gpu_check; the two extension modules and _registers.json go into jax_moye/
driver      100  every row on exact integers between guard bands, without JAX (gemm_check.cu, grouped_check.cu)
conformance 120  one program per instruction wrapper, compared with NumPy; writes golden.tar.gz
pytest      150  pytest -m gpu
memcheck    150  compute-sanitizer on conformance programs and a few products of every row
racecheck   260  the same, for races in shared memory
bench       150  python -m jax_moye bench on rows of every regime
profile     50   ncu on one launch at 4096^3
rest        300  every other test
"

stage_environment() {
  nvidia-smi
  nvcc --version | tail -2
  cmake --version | head -1
  "$PYTHON" - <<'EOF'
import importlib.metadata as metadata, sys
print(sys.version)
for name in "jax jaxlib jax-cuda13-plugin jax-cuda12-plugin numpy ml-dtypes nanobind scikit-build-core torch pytest".split():
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        print(name, "missing")
import jax
print(jax.devices(), jax.devices()[0].client.platform_version)
sys.exit(jax.devices()[0].platform != "gpu")
EOF
}

stage_build() {
  local generator=()
  command -v ninja > /dev/null && generator=(-G Ninja)
  cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$PYTHON" \
    -DJAX_MOYE_CUDA=ON -DJAX_MOYE_CUDA_ARCHS="$JAX_MOYE_CUDA_ARCHS" &&
    cmake --build "$build" --parallel "$jobs" &&
    cmake --install "$build" --prefix "$root" &&
    "$PYTHON" -c 'import jax_moye; print(jax_moye.configs()); from jax_moye import _moye_cuda'
}

# The kernels' objects of the build, linked with a program of tests/gpu that has no JAX in it: gemm_check, or
# grouped_check for products of groups.
link_driver() {
  local objects
  objects=$(find "$build/CMakeFiles/jax_moye_kernels.dir" -name '*.o')
  # shellcheck disable=SC2086  # one word per object
  # build/.../cu holds the table of the rows that were built
  nvcc -std=c++20 -O2 -arch=native -I "$build/cu" -I cuda -I ffi "tests/gpu/$1.cu" ffi/registry.cc $objects -o "$build/$1"
}

stage_driver() {
  local status=0
  link_driver grouped_check & # beside the other
  link_driver gemm_check && "$build/gemm_check" || status=1
  wait $! && "$build/grouped_check" || status=1
  return $status
}

# Hopper's instructions have programs of their own. Their outputs: $build/conformance_<name>.
hopper_conformance() {
  local name=$1 folder=$build/conformance_$1 program=$build/conformance_$1.exe
  rm -rf "$folder" && mkdir -p "$folder" &&
    nvcc -std=c++20 -O2 --generate-code=arch=compute_90a,code=sm_90a -I cuda "tests/gpu/conformance_$name.cu" \
      -o "$program" && "$program" "$folder" > /dev/null
}

stage_conformance() {
  local golden=$build/golden/conformance name status=0 hopper=()
  rm -rf "$build/golden" && mkdir -p "$golden" || return
  if nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | grep -q '^9\.0'; then
    for name in wgmma tma; do
      [ -f "tests/gpu/conformance_$name.cu" ] || continue
      hopper+=("$name")
      { hopper_conformance "$name" > "$build/conformance_$name.log" 2>&1; echo $? > "$build/conformance_$name.rc"; } &
    done
  fi
  nvcc -std=c++20 -O2 -arch=native -I cuda tests/gpu/conformance.cu -o "$build/conformance" &&
    "$build/conformance" "$golden" > /dev/null || status=1
  wait
  # Written even if NumPy disagrees: then the files say what the GPU does, which is the truth.
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader > "$golden/gpu.txt"
  nvcc --version | tail -2 >> "$golden/gpu.txt"
  "$PYTHON" tests/gpu/conformance_reference.py "$golden" || status=1
  for name in "${hopper[@]}"; do
    cat "$build/conformance_$name.log"
    [ "$(cat "$build/conformance_$name.rc")" = 0 ] || { echo "conformance_$name failed"; status=1; continue; }
    if [ "$name" = wgmma ]; then # large outputs: digests
      "$PYTHON" tests/gpu/conformance_wgmma_reference.py "$build/conformance_wgmma" \
        "$build/golden/conformance_wgmma.tsv" || status=1
    else
      cp -r "$build/conformance_$name" "$build/golden/"
      "$PYTHON" "tests/gpu/conformance_${name}_reference.py" "$build/conformance_$name" || status=1
    fi
  done
  tar -czf "$OUT/golden.tar.gz" -C "$build/golden" .
  return $status
}

stage_pytest() {
  # Named, so that tests/python's conftest does not ask for the CPU first.
  # Chains of calls that are captured first, which a process has to be started for.
  JAX_MOYE_RECORD_CALLS=0 JAX_PLATFORMS=cuda,cpu "$PYTHON" -m pytest -m gpu --timeout 140 tests/gpu/test_gpu_overlap.py &&
    JAX_PLATFORMS=cuda,cpu "$PYTHON" -m pytest -m gpu --timeout 140 --junitxml "$OUT/gpu_tests.xml" tests
}

sanitize() {
  if ! command -v compute-sanitizer > /dev/null; then
    echo "compute-sanitizer is not installed"
    return 77
  fi
  [ -x "$build/gemm_check" ] || link_driver gemm_check || return
  [ -x "$build/grouped_check" ] || link_driver grouped_check || return
  [ -x "$build/conformance" ] || stage_conformance || return
  # racecheck (2025.3) does not follow bar.arrive: it reports the hand-over of named_barrier_arrive, whose twin with bar.sync
  # in its place it finds clean.
  local leave_out=()
  [ "$1" = racecheck ] && leave_out=(named_barrier_arrive)
  compute-sanitizer --tool "$1" --error-exitcode 9 "$build/gemm_check" --small &&
    compute-sanitizer --tool "$1" --error-exitcode 9 "$build/grouped_check" --small &&
    compute-sanitizer --tool "$1" --error-exitcode 9 "$build/conformance" "$(mktemp -d)" "${leave_out[@]}" \
      > "$build/$1.txt" 2>&1
  local status=$?
  [ -f "$build/$1.txt" ] && grep '=====' "$build/$1.txt"
  return $status
}
stage_memcheck() { sanitize memcheck; }
stage_racecheck() { sanitize racecheck; }

stage_bench() {
  # Rows of every regime; 4096^3 is A2. `python -m jax_moye bench` without --rows runs the whole suite.
  "$PYTHON" -m jax_moye bench --rows 'A2|A11|B2|B9|B11|C[145]|D[123]|E[123]|G[14]|H[1345]|I[13]' --baselines xla,torch \
    --alternations 9 --turn-ms 40 --warmup-ms 300 --budget-s 120 --out "$OUT/bench.json"
}

stage_profile() {
  if ! command -v ncu > /dev/null; then
    echo "ncu is not installed"
    return 77
  fi
  [ -x "$build/gemm_check" ] || link_driver gemm_check || return
  # The third launch: the first two warm up. The clocks stay as they are.
  ncu --clock-control none --set detailed --launch-skip 2 --launch-count 1 \
    "$build/gemm_check" --profile sm80_multistage_bf16_128x128x32_s4_a16 4096 4096 4096 > "$OUT/ncu.txt" 2>&1
  local status=$?
  grep -E 'Duration|SM Frequency|Compute \(SM\) Throughput|DRAM Throughput|Bank|Registers Per|Occupancy' "$OUT/ncu.txt"
  return $status
}

stage_rest() {
  # As in CI, on the CPU: these tests are about what runs without a GPU.
  JAX_PLATFORMS=cpu "$PYTHON" -m pytest -m "not gpu" -n "$jobs" --maxprocesses 16 --timeout 140 -q tests
}

# ---- Running them
list_stages() {
  echo "gpu_check.sh runs these stages, each within its limit, and writes to $OUT:"
  echo "$stages" | awk 'NF { name = $1; limit = $2; $1 = $2 = ""; printf "  %-12s %4d s  %s\n", name, limit, $0 }'
}

if [ "${1:-}" = --stage ]; then # how this script runs itself under `timeout`
  "stage_$2"
  exit
fi
if [ "${1:-}" = --dry-run ]; then
  list_stages
  exit 2
fi
if ! nvidia-smi -L > /dev/null 2>&1; then
  echo "gpu_check: no GPU here (nvidia-smi finds none), so nothing was run." >&2
  list_stages
  exit 2
fi

wanted=" $* "
for name in "$@"; do
  if ! echo "$stages" | grep -q "^$name "; then
    echo "gpu_check: no stage is named $name" >&2
    list_stages >&2
    exit 2
  fi
done

mkdir -p "$OUT"
log=$OUT/log.txt
: > "$log"
rm -f "$OUT/summary.txt"
deadline=$((SECONDS + ${SECONDS_IN_ALL:-1620}))
failed=0
broken=""
while read -r name limit _; do
  [ -n "$name" ] || continue
  if [ "$wanted" != "  " ] && [[ "$wanted" != *" $name "* ]]; then
    continue
  fi
  left=$((deadline - SECONDS))
  if [ -n "$broken" ]; then
    result="not run: $broken failed"
  elif [ "$left" -lt 5 ]; then
    result="not run: out of time"
    [ "$name" = rest ] || failed=1
  else
    [ "$limit" -le "$left" ] || limit=$left
    start=$SECONDS
    printf '\n======== %s\n' "$name" | tee -a "$log"
    timeout --kill-after=5 "$limit" bash "$script" --stage "$name" < /dev/null 2>&1 | tee -a "$log"
    status=${PIPESTATUS[0]}
    case $status in
      0) result=passed ;;
      77) result="not run: tool missing" ;;
      124 | 137)
        result="out of time after $limit s"
        [ "$name" = rest ] || failed=1
        ;;
      *)
        result="FAILED (status $status)"
        failed=1
        ;;
    esac
    result="$result, $((SECONDS - start)) s"
    case $name:$status in
      build:0 | environment:0) ;;
      build:* | environment:*) broken=$name ;; # without modules, or without a GPU in JAX, nothing else can run
    esac
  fi
  printf '%-12s %s\n' "$name" "$result" >> "$OUT/summary.txt"
done <<< "$stages"

# What a person reads first, and all that is left of the output where only its end is kept.
{
  echo
  [ -f "$OUT/bench.json" ] && "$PYTHON" -m jax_moye show "$OUT/bench.json"
  cat "$OUT/summary.txt"
  [ "$failed" = 0 ] && echo "gpu_check: passed" || echo "gpu_check: FAILED"
} 2>&1 | tee -a "$log" | tee "$OUT/summary.tmp"
mv "$OUT/summary.tmp" "$OUT/summary.txt"
exit "$failed"
