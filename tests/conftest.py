"""Settings of all tests."""

import os

# Before NumPy is imported. As many test processes run as there are cores, and OpenBLAS' threads spin while they wait.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
