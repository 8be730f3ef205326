-- A shop in eleven tables. slackwater_bench.shop writes them.

CREATE TABLE shop.regions (
    id bigint PRIMARY KEY,
    name text NOT NULL
);

CREATE TABLE shop.customers (
    id bigint PRIMARY KEY,
    region_id bigint NOT NULL,
    name text NOT NULL
);

CREATE TABLE shop.addresses (
    id bigint PRIMARY KEY,
    customer_id bigint NOT NULL,
    city text NOT NULL
);

CREATE TABLE shop.categories (
    id bigint PRIMARY KEY,
    name text NOT NULL
);

CREATE TABLE shop.suppliers (
    id bigint PRIMARY KEY,
    name text NOT NULL
);

CREATE TABLE shop.products (
    id bigint PRIMARY KEY,
    category_id bigint NOT NULL,
    supplier_id bigint NOT NULL,
    name text NOT NULL
);

CREATE TABLE shop.stock (
    id bigint PRIMARY KEY,
    product_id bigint NOT NULL,
    quantity int NOT NULL
);

CREATE TABLE shop.orders (
    id bigint PRIMARY KEY,
    customer_id bigint NOT NULL,
    address_id bigint NOT NULL,
    status text NOT NULL
);

CREATE TABLE shop.lines (
    id bigint PRIMARY KEY,
    order_id bigint NOT NULL,
    product_id bigint NOT NULL,
    quantity int NOT NULL,
    price numeric(10, 2) NOT NULL
);

CREATE TABLE shop.payments (
    id bigint PRIMARY KEY,
    order_id bigint NOT NULL,
    amount numeric(12, 2) NOT NULL
);

CREATE TABLE shop.shipments (
    id bigint PRIMARY KEY,
    order_id bigint NOT NULL,
    status text NOT NULL
);

-- Changed rows say what they were: one that moves to another parent must say from which.
ALTER TABLE shop.regions REPLICA IDENTITY FULL;
ALTER TABLE shop.customers REPLICA IDENTITY FULL;
ALTER TABLE shop.addresses REPLICA IDENTITY FULL;
ALTER TABLE shop.categories REPLICA IDENTITY FULL;
ALTER TABLE shop.suppliers REPLICA IDENTITY FULL;
ALTER TABLE shop.products REPLICA IDENTITY FULL;
ALTER TABLE shop.stock REPLICA IDENTITY FULL;
ALTER TABLE shop.orders REPLICA IDENTITY FULL;
ALTER TABLE shop.lines REPLICA IDENTITY FULL;
ALTER TABLE shop.payments REPLICA IDENTITY FULL;
ALTER TABLE shop.shipments REPLICA IDENTITY FULL;
