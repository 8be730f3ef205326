-- Tables like TPC-C's, with single numbers as keys.

CREATE TABLE tpcc.warehouse (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    ytd numeric(16, 2) NOT NULL
);

CREATE TABLE tpcc.district (
    id bigint PRIMARY KEY,
    warehouse_id bigint NOT NULL,
    name text NOT NULL,
    ytd numeric(16, 2) NOT NULL,
    next_order int NOT NULL
);

CREATE TABLE tpcc.customer (
    id bigint PRIMARY KEY,
    district_id bigint NOT NULL,
    name text NOT NULL,
    balance numeric(14, 2) NOT NULL,
    ytd_payment numeric(14, 2) NOT NULL,
    payments int NOT NULL,
    deliveries int NOT NULL
);

CREATE TABLE tpcc.stock (
    id bigint PRIMARY KEY,
    warehouse_id bigint NOT NULL,
    item int NOT NULL,
    quantity int NOT NULL,
    ytd bigint NOT NULL,
    order_count int NOT NULL
);

CREATE TABLE tpcc.history (
    id bigint PRIMARY KEY,
    customer_id bigint NOT NULL,
    district_id bigint NOT NULL,
    amount numeric(10, 2) NOT NULL
);

CREATE TABLE tpcc.orders (
    id bigint PRIMARY KEY,
    district_id bigint NOT NULL,
    customer_id bigint NOT NULL,
    carrier int,
    line_count int NOT NULL,
    entered timestamptz NOT NULL
);

CREATE TABLE tpcc.new_orders (
    id bigint PRIMARY KEY,
    district_id bigint NOT NULL
);

CREATE TABLE tpcc.order_line (
    id bigint PRIMARY KEY,
    order_id bigint NOT NULL,
    item int NOT NULL,
    quantity int NOT NULL,
    amount numeric(10, 2) NOT NULL,
    delivered timestamptz
);

-- Districts are joined by their warehouse: old rows must say which.
ALTER TABLE tpcc.district REPLICA IDENTITY FULL;
