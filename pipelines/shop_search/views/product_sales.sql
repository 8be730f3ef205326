-- One document per product, sold or not.
SELECT TRANSACTIONALLY
    p.id,
    p.name,
    p.category,
    count(l.id) AS lines,
    coalesce(sum(l.quantity), 0) AS sold,
    coalesce(sum(l.quantity * l.price), 0) AS revenue
FROM shop.products p
LEFT JOIN shop.lines l ON l.product_id = p.id
GROUP BY p.id, p.name, p.category
