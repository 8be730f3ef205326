-- Before the tables of pipelines/orders.
CREATE SCHEMA inventory;
