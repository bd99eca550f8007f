"""Programs of public kinds of models, in plain JAX: what `bench --program` runs beside a user's own."""
