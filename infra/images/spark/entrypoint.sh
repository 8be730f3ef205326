#!/bin/sh
# What Spark on Kubernetes asks of an image: `driver ARGUMENTS...` and `executor`. Anything else is a command.
set -eu

# Options of the JVM come one per variable: SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ... Each may hold spaces.
with_java_options() {
    number=$(env | grep -c '^SPARK_JAVA_OPT_[0-9]*=' || true)
    while [ "$number" -gt 0 ]; do
        number=$((number - 1))
        eval "option=\$SPARK_JAVA_OPT_$number"
        set -- "$option" "$@"
    done
    exec "$JAVA_HOME/bin/java" "$@"
}

case "${1:-}" in
driver)
    shift
    exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
executor)
    classpath="${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*${SPARK_CLASSPATH:+:$SPARK_CLASSPATH}"
    classpath="${HADOOP_CONF_DIR:+$HADOOP_CONF_DIR:}$classpath${SPARK_EXTRA_CLASSPATH:+:$SPARK_EXTRA_CLASSPATH}"
    with_java_options "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classpath" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    exec "$@"
    ;;
esac
