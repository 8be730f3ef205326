-- The tables of the comparison: as those of the orders pipeline, but Flink and Pathway need every old row whole.

CREATE TABLE inventory.orders (
    id bigint PRIMARY KEY,
    customer text NOT NULL,
    status text NOT NULL,
    line_count int NOT NULL,
    total numeric(12, 2) NOT NULL,
    created_at timestamptz NOT NULL
);

CREATE TABLE inventory.order_lines (
    id bigint PRIMARY KEY,
    order_id bigint NOT NULL,
    product text NOT NULL,
    quantity int NOT NULL,
    price numeric(10, 2) NOT NULL
);

ALTER TABLE inventory.orders REPLICA IDENTITY FULL;
ALTER TABLE inventory.order_lines REPLICA IDENTITY FULL;
