-- One document per order, with its lines.
SELECT TRANSACTIONALLY
    o.id,
    o.customer,
    o.status,
    o.line_count,
    o.total,
    o.created_at,
    coalesce(
        list(
            {'id': l.id, 'product': l.product, 'quantity': l.quantity, 'price': l.price}
            ORDER BY l.id
        ) FILTER (WHERE l.id IS NOT NULL),
        []
    ) AS lines
FROM inventory.orders o
LEFT JOIN inventory.order_lines l ON l.order_id = o.id
GROUP BY o.id
