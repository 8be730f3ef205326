#!/bin/sh
# Runs a broker as the image of Apache Kafka does: properties from variables KAFKA_..., a volume of data formatted once.
set -eu
if [ $# -gt 0 ]; then
    exec "$@"
fi
folder=${KAFKA_LOG_DIRS:-/tmp/kraft-combined-logs}
properties=$(mktemp)
echo "log.dirs=$folder" >"$properties"
env | sed -n 's/^KAFKA_\([A-Z0-9_]*\)=\(.*\)$/\1 \2/p' | while read -r name value; do
    case $name in LOG_DIRS | OPTS | HEAP_OPTS | JVM_PERFORMANCE_OPTS | LOG4J_OPTS) continue ;; esac
    echo "$(echo "$name" | tr '[:upper:]_' '[:lower:].')=$value" >>"$properties"
done
run=/opt/kafka/bin/kafka-run-class.sh
"$run" kafka.tools.StorageTool format --ignore-formatted --cluster-id "${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}" --config "$properties"
exec "$run" kafka.Kafka "$properties"
