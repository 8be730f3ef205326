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

ALTER TABLE shop.orders REPLICA IDENTITY FULL;
ALTER TABLE shop.lines REPLICA IDENTITY FULL;
