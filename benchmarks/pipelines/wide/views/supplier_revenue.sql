-- One document per supplier of whom something was sold.
SELECT TRANSACTIONALLY
    s.id,
    s.name,
    count(*) AS line_count,
    sum(l.quantity * l.price) AS revenue
FROM shop.lines l
JOIN shop.products p ON p.id = l.product_id
JOIN shop.suppliers s ON s.id = p.supplier_id
GROUP BY s.id, s.name
