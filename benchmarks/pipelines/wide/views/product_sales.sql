-- One document per product, sold or not.
SELECT TRANSACTIONALLY
    p.id,
    p.name,
    k.name AS category,
    s.name AS supplier,
    count(l.id) AS line_count,
    coalesce(sum(l.quantity), 0) AS sold,
    coalesce(sum(l.quantity * l.price), 0) AS revenue
FROM shop.products p
JOIN shop.categories k ON k.id = p.category_id
JOIN shop.suppliers s ON s.id = p.supplier_id
LEFT JOIN shop.lines l ON l.product_id = p.id
GROUP BY p.id, p.name, k.name, s.name
