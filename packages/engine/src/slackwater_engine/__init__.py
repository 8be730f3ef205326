"""Makes documents of views from change records, whole transactions only.

No Spark, no Kafka, no Redis. ``records`` finds the changes of a batch among a topic's records, ``pack`` makes
events of them, by bucket; a ``bucket`` applies events to its ``state``, of which an ``index`` holds the live
entries; ``evaluate`` and ``accumulate`` compute what a stage's results are and what has changed in them.
``local`` runs a whole pipeline in one process.
"""
