-- One document per customer.
SELECT TRANSACTIONALLY c.id AS customer_id, c.name, c.country
FROM shop.customers c
