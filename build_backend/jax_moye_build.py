"""PEP 517 / 660 backend: scikit-build-core, plus the CUDA compiler as wheels where this machine has none.

The extra requirement is added only when the kernels are to be built for CUDA and there is no nvcc to build them with;
`cuda_compiler.py` beside this file decides, for this backend and for CMake alike. The variables it reads:

    JAX_MOYE_CUDA=ON|AUTO|OFF       build the CUDA kernels (AUTO: for the GPUs of this machine)
    JAX_MOYE_CUDA_ARCHS=90          build them for these, with AUTO, too
    JAX_MOYE_CUDA_PREFER_WHEEL=1    take the pinned wheels although there is an nvcc
    CUDACXX=/path/to/nvcc           use this one, unasked
"""

from __future__ import annotations

from typing import Any

import cuda_compiler
from scikit_build_core import build as _scikit_build
from scikit_build_core.build import *  # noqa: F403  (build_wheel, build_sdist, build_editable, prepare_metadata_...)


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """scikit-build-core's requirements and, where needed, nvcc."""
    return _scikit_build.get_requires_for_build_wheel(config_settings) + cuda_compiler.build_requirements()


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    """scikit-build-core's requirements and, where needed, nvcc."""
    return _scikit_build.get_requires_for_build_editable(config_settings) + cuda_compiler.build_requirements()
