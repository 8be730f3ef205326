"""Which of Kafka's errors mean that trying again is of no use, and what helps."""

from collections.abc import Mapping

from confluent_kafka import KafkaError

from slackwater_spark.sink.errors import OutputRefusedError

_AGAIN = "then start the pipeline again"
_ADVICE: Mapping[int, str] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (
        "grant the pipeline's user Write, Read, Describe and DescribeConfigs on its output, commit and "
        f"progress topics, and Create if they do not exist, {_AGAIN}"
    ),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "grant the pipeline's user Write and Describe on the transactional id 'slackwater-<pipeline>', "
        f"{_AGAIN}"
    ),
    KafkaError.GROUP_AUTHORIZATION_FAILED: (
        f"grant the pipeline's user Read on the group 'slackwater-<pipeline>', {_AGAIN}"
    ),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (
        f"grant the pipeline's user Create and IdempotentWrite on the cluster, {_AGAIN}"
    ),
    KafkaError.INVALID_TRANSACTION_TIMEOUT: (
        "raise the broker's transaction.max.timeout.ms to 15 minutes, or close batches earlier "
        f"(run.max_events_per_batch), {_AGAIN}"
    ),
    KafkaError.MSG_SIZE_TOO_LARGE: (
        "raise max.message.bytes of the topic (and message.max.bytes of the pipeline's Kafka options, if it "
        f"is set there), {_AGAIN}"
    ),
    KafkaError.INVALID_RECORD: (
        "the broker's log names the rule; a compacted topic, for one, takes no records without a key. "
        f"Change the topic, {_AGAIN}"
    ),
    KafkaError.POLICY_VIOLATION: (
        "a policy of the broker forbids it (create.topic.policy.class.name): make the topics by hand as the "
        f"policy wants them, {_AGAIN}"
    ),
    KafkaError.INVALID_REPLICATION_FACTOR: (
        f"set kafka.replication_factor to what the cluster has brokers for, {_AGAIN}"
    ),
    KafkaError.TOPIC_EXCEPTION: f"the topic's name is not one that Kafka takes: change it, {_AGAIN}",
    KafkaError.INVALID_CONFIG: f"mend the topic's configuration, {_AGAIN}",
    KafkaError.UNSUPPORTED_VERSION: "the broker is too old for transactions: upgrade it",
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE: (f"set another compression.type in kafka.options, {_AGAIN}"),
}


def refusal(pipeline: str, what: str, error: KafkaError) -> OutputRefusedError | None:
    """What to raise if Kafka would answer the same again; None if it may be different the next time."""
    advice = _ADVICE.get(error.code())
    if advice is None:
        return None
    advice = advice.replace("<pipeline>", pipeline)
    return OutputRefusedError(pipeline, what, f"{error.str()} ({error.name()})", advice)
