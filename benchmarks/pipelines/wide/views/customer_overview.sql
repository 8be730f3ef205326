-- One document per customer, with and without orders: what was ordered and what was paid.
SELECT TRANSACTIONALLY
    c.id,
    c.name,
    count(o.id) AS orders,
    coalesce(sum(p.paid), 0) AS paid
FROM shop.customers c
LEFT JOIN shop.orders o ON o.customer_id = c.id
LEFT JOIN (SELECT order_id, sum(amount) AS paid FROM shop.payments GROUP BY order_id) p ON p.order_id = o.id
GROUP BY c.id, c.name
