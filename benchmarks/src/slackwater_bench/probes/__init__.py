"""Scripts that run in the environment of the measured commit; they import the product, not the benchmark."""
