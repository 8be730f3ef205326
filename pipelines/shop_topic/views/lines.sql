-- One document per line, with the customer of its order.
SELECT TRANSACTIONALLY o.customer_id, l.order_id, l.id AS line_id, l.product_id, l.quantity, l.price
FROM shop.lines l
JOIN shop.orders o ON o.id = l.order_id
