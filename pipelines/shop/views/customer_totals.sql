-- One document per customer with an order that is not cancelled. Reads another view of this pipeline.
SELECT TRANSACTIONALLY
    c.id,
    c.name,
    c.country,
    count(*) AS orders,
    sum(d.total) AS spent,
    max(d.placed_at) AS last_order_at
FROM shop.customers c
JOIN order_details d ON d.customer_id = c.id
WHERE d.status <> 'cancelled'
GROUP BY c.id, c.name, c.country
