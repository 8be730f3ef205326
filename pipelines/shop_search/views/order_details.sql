-- One document per order: what is in it, what it comes to.
SELECT TRANSACTIONALLY
    o.id,
    o.customer_id,
    o.status,
    o.placed_at,
    count(l.id) AS line_count,
    coalesce(sum(l.quantity * l.price), 0) AS total,
    coalesce(
        list({'product_id': l.product_id, 'quantity': l.quantity, 'price': l.price} ORDER BY l.id)
            FILTER (WHERE l.id IS NOT NULL),
        []
    ) AS lines
FROM shop.orders o
LEFT JOIN shop.lines l ON l.order_id = o.id
GROUP BY o.id
