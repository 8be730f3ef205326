"""Makes documents of views from change records, whole transactions only.

No Spark, no Kafka, no Redis. ``pack`` makes events of the changes that ``slackwater_cdc.records`` finds, by
bucket; a ``bucket`` applies events to its ``state``, of which an ``index`` holds the live
entries; ``evaluate`` and ``accumulate`` compute what a stage's results are and what has changed in them.
``local`` runs a whole pipeline in one process.
"""

__version__ = "0.1.0"
