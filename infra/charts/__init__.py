"""The Helm chart, and what its tests check it with."""
