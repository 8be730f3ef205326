-- One document per shipment: where it goes.
SELECT TRANSACTIONALLY
    h.id,
    h.status,
    o.status AS order_status,
    a.city
FROM shop.shipments h
JOIN shop.orders o ON o.id = h.order_id
LEFT JOIN shop.addresses a ON a.id = o.address_id
