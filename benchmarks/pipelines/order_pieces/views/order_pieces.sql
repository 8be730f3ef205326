-- One document per order, with what its lines add up to.
SELECT TRANSACTIONALLY o.id, o.customer_id, l.pieces, l.lines
FROM shop.orders o
JOIN (
    SELECT order_id, sum(quantity) AS pieces, count(*) AS lines FROM shop.lines GROUP BY order_id
) l ON l.order_id = o.id
