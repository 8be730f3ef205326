-- One document per order: what the shop knows of it, and what has been booked for it.
SELECT TRANSACTIONALLY
    o.id,
    o.customer_id,
    o.amount,
    o.status,
    max(p.state) AS payment,
    count(DISTINCT p.id) FILTER (WHERE p.state = 'booked') AS bookings,
    count(DISTINCT s.id) AS parcels
FROM shop.orders o
LEFT JOIN payments.payments p ON p.order_id = o.id
LEFT JOIN shop.parcels s ON s.order_id = o.id
GROUP BY o.id
