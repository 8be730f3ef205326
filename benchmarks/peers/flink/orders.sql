-- The orders view in Flink SQL. ${...} are filled in by program.py.
SET 'execution.runtime-mode' = 'streaming';
SET 'parallelism.default' = '2';
SET 'table.exec.mini-batch.enabled' = 'true';
SET 'table.exec.mini-batch.allow-latency' = '200 ms';
SET 'table.exec.mini-batch.size' = '5000';
SET 'table.dml-sync' = 'true';
SET 'pipeline.object-reuse' = 'true';

CREATE TABLE orders (
    id BIGINT,
    customer STRING,
    status STRING,
    line_count INT,
    total STRING,
    PRIMARY KEY (id) NOT ENFORCED
) WITH (
    'connector' = 'kafka',
    'topic' = '${prefix}.inventory.orders',
    'properties.bootstrap.servers' = '${bootstrap}',
    'properties.group.id' = 'flink-${output}',
    'scan.startup.mode' = 'earliest-offset',
    'format' = 'debezium-json'
);

CREATE TABLE order_lines (
    id BIGINT,
    order_id BIGINT,
    product STRING,
    quantity INT,
    price STRING,
    PRIMARY KEY (id) NOT ENFORCED
) WITH (
    'connector' = 'kafka',
    'topic' = '${prefix}.inventory.order_lines',
    'properties.bootstrap.servers' = '${bootstrap}',
    'properties.group.id' = 'flink-${output}',
    'scan.startup.mode' = 'earliest-offset',
    'format' = 'debezium-json'
);

CREATE TABLE documents (
    id STRING,
    document STRING,
    PRIMARY KEY (id) NOT ENFORCED
) WITH (
    'connector' = 'upsert-kafka',
    'topic' = '${output}',
    'properties.bootstrap.servers' = '${bootstrap}',
    'properties.linger.ms' = '5',
    'properties.compression.type' = 'lz4',
    'key.format' = 'raw',
    'value.format' = 'raw',
    'value.fields-include' = 'EXCEPT_KEY',
    'sink.buffer-flush.max-rows' = '5000',
    'sink.buffer-flush.interval' = '200 ms'
);

INSERT INTO documents
SELECT
    CAST(o.id AS STRING),
    JSON_OBJECT(
        'id' VALUE o.id,
        'customer' VALUE o.customer,
        'status' VALUE o.status,
        'line_count' VALUE o.line_count,
        'total' VALUE o.total,
        'lines' VALUE JSON(COALESCE(l.`lines`, '[]'))
    )
FROM orders AS o
LEFT JOIN (
    SELECT
        order_id,
        JSON_ARRAYAGG(
            JSON_OBJECT('id' VALUE id, 'product' VALUE product, 'quantity' VALUE quantity, 'price' VALUE price)
        ) AS `lines`
    FROM order_lines
    GROUP BY order_id
) AS l ON l.order_id = o.id;
