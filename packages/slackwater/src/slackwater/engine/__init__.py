"""Turns change records into documents of views, in whole transactions only.

This package uses no Spark, Kafka or Redis. ``packer`` turns the changes that ``slackwater.cdc.changes``
finds into events, divided by bucket. A ``bucket`` applies events to its ``state``; an ``index`` contains the
live entries of that state. ``evaluate`` computes the results of a stage, and what has changed in them.
``local`` runs a whole pipeline in one process.
"""
