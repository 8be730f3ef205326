-- One document per order.
SELECT TRANSACTIONALLY
    o.customer_id,
    o.id AS order_id,
    o.status,
    count(l.id) AS line_count,
    coalesce(sum(l.quantity * l.price), 0) AS total
FROM shop.orders o
LEFT JOIN shop.lines l ON l.order_id = o.id
GROUP BY o.id
