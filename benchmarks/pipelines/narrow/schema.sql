-- Two of the tables of the pipeline `wide`.

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

-- Changed rows say what they were: one that moves to another parent must say from which.
ALTER TABLE shop.orders REPLICA IDENTITY FULL;
ALTER TABLE shop.lines REPLICA IDENTITY FULL;
