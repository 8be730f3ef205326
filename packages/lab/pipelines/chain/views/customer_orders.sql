-- Each order with its customer and what its lines add up to: three tables, joined on two keys.
SELECT TRANSACTIONALLY
    o.id,
    c.name AS customer,
    c.region,
    o.status,
    count(l.id) AS lines,
    coalesce(sum(l.quantity * l.price), 0) AS total
FROM shop.orders o
JOIN shop.customers c ON c.id = o.customer_id
LEFT JOIN shop.lines l ON l.order_id = o.id
GROUP BY o.id, c.id
