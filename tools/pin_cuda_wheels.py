"""Writes build_backend/cuda_wheels.json: which wheels of PyPI the build takes nvcc from, and what is in them.

    python tools/pin_cuda_wheels.py --version 13.2.86

downloads NVIDIA's wheels of that version for both machines, and writes a digest of the contents of each. The build
compares them with what pip has installed (cuda_compiler.py), before it runs any of it.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "build_backend"))
import cuda_compiler  # noqa: E402

DISTRIBUTIONS = (
    "nvidia-cuda-cccl",
    "nvidia-cuda-crt",
    "nvidia-cuda-cuobjdump",
    "nvidia-cuda-nvcc",
    "nvidia-cuda-nvdisasm",
    "nvidia-cuda-runtime",
    "nvidia-nvvm",
)
# Tags of wheels that a machine with manylinux_2_28 takes.
PLATFORMS = ("manylinux2010", "manylinux2014", "manylinux_2_17", "manylinux_2_27", "manylinux_2_28")


def main() -> int:
    """Downloads and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", required=True, help="of all of the wheels")
    version = parser.parse_args().version
    pins: dict[str, dict[str, str]] = {name: {"version": version} for name in DISTRIBUTIONS}
    for machine in cuda_compiler.MACHINES:
        platforms = [f"--platform={platform}_{machine}" for platform in PLATFORMS]
        for name in DISTRIBUTIONS:
            with tempfile.TemporaryDirectory() as folder:
                download = ["download", "--no-deps", "--only-binary=:all:", "-q", "-d", folder]
                subprocess.run([sys.executable, "-m", "pip", *download, *platforms, f"{name}=={version}"], check=True)
                (wheel,) = pathlib.Path(folder).iterdir()
                pins[name][machine] = cuda_compiler.digest_of_wheel(wheel)
    cuda_compiler.PINS_FILE.write_text(json.dumps(pins, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
