-- Shipping modes and priorities: whether cheap modes make urgent orders late.
SELECT TRANSACTIONALLY
    l_shipmode,
    sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS urgent,
    sum(CASE WHEN o_orderpriority NOT IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS other
FROM orders
JOIN lineitem ON l_orderkey = o_orderkey
WHERE l_shipmode IN ('RAIL', 'TRUCK') AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
    AND l_receiptdate >= DATE '1993-01-01' AND l_receiptdate < DATE '1993-01-01' + INTERVAL '1 year'
GROUP BY l_shipmode
ORDER BY l_shipmode;
