-- The tables this pipeline reads, as they are in the database.

CREATE TABLE shop.customers (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    country text NOT NULL
);

CREATE TABLE shop.products (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    category text NOT NULL
);

CREATE TABLE shop.orders (
    id bigint PRIMARY KEY,
    customer_id bigint NOT NULL,
    status text NOT NULL,
    placed_at timestamptz NOT NULL
);

CREATE TABLE shop.lines (
    id bigint PRIMARY KEY,
    order_id bigint NOT NULL,
    product_id bigint NOT NULL,
    quantity int NOT NULL,
    price numeric(10, 2) NOT NULL
);

-- A line can move to another order or product: its old row must say from which.
ALTER TABLE shop.lines REPLICA IDENTITY FULL;
