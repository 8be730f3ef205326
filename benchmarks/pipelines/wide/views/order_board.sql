-- One document per order: whose it is, what it comes to.
SELECT TRANSACTIONALLY
    o.id,
    o.status,
    c.name AS customer,
    r.name AS region,
    count(l.id) AS line_count,
    coalesce(sum(l.quantity * l.price), 0) AS total
FROM shop.orders o
JOIN shop.customers c ON c.id = o.customer_id
JOIN shop.regions r ON r.id = c.region_id
LEFT JOIN shop.lines l ON l.order_id = o.id
GROUP BY o.id, o.status, c.name, r.name
