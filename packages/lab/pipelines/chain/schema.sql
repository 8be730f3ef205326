-- A shop: customers, their orders, the lines of those.

CREATE TABLE shop.customers (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    region text NOT NULL,
    note text
);

CREATE TABLE shop.orders (
    id bigint PRIMARY KEY,
    customer_id bigint NOT NULL,
    status text NOT NULL
);

CREATE TABLE shop.lines (
    id bigint PRIMARY KEY,
    order_id bigint NOT NULL,
    product text NOT NULL,
    quantity int NOT NULL,
    price numeric(10, 2) NOT NULL
);

-- Orders are joined by their customer, lines by their order: old rows must say from which.
ALTER TABLE shop.orders REPLICA IDENTITY FULL;
ALTER TABLE shop.lines REPLICA IDENTITY FULL;
