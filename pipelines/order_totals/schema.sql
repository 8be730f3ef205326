-- The tables this pipeline reads, as they are in the database.

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

-- A line can move to another order: its old row must say from which.
ALTER TABLE inventory.order_lines REPLICA IDENTITY FULL;
