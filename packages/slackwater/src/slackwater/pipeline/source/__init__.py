"""The Spark source ``format("slackwater")``; Spark finds it through the module ``pyspark_slackwater``."""
