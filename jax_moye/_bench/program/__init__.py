"""`bench --program`: whole programs, by XLA alone and with our kernels."""
