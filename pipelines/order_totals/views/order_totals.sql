-- One row per order: what its lines come to.
SELECT TRANSACTIONALLY
    o.id,
    o.customer,
    o.status,
    count(l.id) AS line_count,
    coalesce(sum(l.quantity * l.price), 0) AS total,
    coalesce(
        list({'product': l.product, 'quantity': l.quantity} ORDER BY l.id) FILTER (WHERE l.id IS NOT NULL),
        []
    ) AS lines
FROM inventory.orders o
LEFT JOIN inventory.order_lines l ON l.order_id = o.id
GROUP BY o.id
