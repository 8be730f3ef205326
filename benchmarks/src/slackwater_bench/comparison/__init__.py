"""Two commits against each other, by alternating runs."""
