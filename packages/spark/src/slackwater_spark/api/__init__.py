"""The Python API; its names are those of `slackwater_spark`, which imports each when it is first used."""
