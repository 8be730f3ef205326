-- One document per category: what its products have in stock.
SELECT TRANSACTIONALLY
    k.id,
    k.name,
    count(*) AS products,
    coalesce(sum(s.quantity), 0) AS quantity
FROM shop.categories k
JOIN shop.products p ON p.category_id = k.id
LEFT JOIN (SELECT product_id, sum(quantity) AS quantity FROM shop.stock GROUP BY product_id) s
    ON s.product_id = p.id
GROUP BY k.id, k.name
