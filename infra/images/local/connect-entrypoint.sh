#!/bin/sh
# Runs a Connect worker as the image of Debezium does: properties from the variables that it names, and from CONNECT_...
set -eu
if [ $# -gt 0 ]; then
    exec "$@"
fi
for name in BOOTSTRAP_SERVERS GROUP_ID CONFIG_STORAGE_TOPIC OFFSET_STORAGE_TOPIC STATUS_STORAGE_TOPIC KEY_CONVERTER VALUE_CONVERTER; do
    eval "export CONNECT_$name=\${$name}"
done
properties=$(mktemp)
{
    echo "plugin.path=/kafka/connect"
    echo "listeners=http://:8083"
    for kind in config offset status; do echo "$kind.storage.replication.factor=1"; done
    env | sed -n 's/^CONNECT_\([A-Z0-9_]*\)=\(.*\)$/\1 \2/p' | while read -r name value; do
        echo "$(echo "$name" | tr '[:upper:]_' '[:lower:].')=$value"
    done
} >"$properties"
exec /kafka/bin/kafka-run-class.sh org.apache.kafka.connect.cli.ConnectDistributed "$properties"
