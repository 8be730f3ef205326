"""The Python API. `slackwater_spark` exports its names, and imports each of them when it is first used."""
