-- The tables of both services, as far as the views read them.

CREATE TABLE shop.orders (
    id bigint PRIMARY KEY,
    customer_id bigint NOT NULL,
    amount bigint NOT NULL,
    status text NOT NULL
);

CREATE TABLE shop.parcels (
    id bigint PRIMARY KEY,
    order_id bigint NOT NULL
);

CREATE TABLE payments.accounts (
    id bigint PRIMARY KEY,
    opened_with bigint NOT NULL,
    balance bigint NOT NULL
);

CREATE TABLE payments.payments (
    id bigint PRIMARY KEY,
    order_id bigint NOT NULL,
    account_id bigint NOT NULL,
    amount bigint NOT NULL,
    state text NOT NULL
);

-- A row that moves to another order or customer would have to say from which.
ALTER TABLE shop.orders REPLICA IDENTITY FULL;
ALTER TABLE shop.parcels REPLICA IDENTITY FULL;
ALTER TABLE payments.payments REPLICA IDENTITY FULL;
