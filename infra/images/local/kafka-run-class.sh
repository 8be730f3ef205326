#!/bin/sh
# Runs a class of Kafka with the variables that Kafka's own script of this name knows.
set -eu
libs="$(dirname "$0")/../libs"
# The variables hold several options each.
# shellcheck disable=SC2086
exec java ${KAFKA_HEAP_OPTS:-} ${KAFKA_JVM_PERFORMANCE_OPTS:-} ${KAFKA_LOG4J_OPTS:-} ${KAFKA_OPTS:-} -cp "$libs/*" "$@"
