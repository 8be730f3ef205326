-- Order priority checking: late orders of a quarter, by priority.
SELECT TRANSACTIONALLY o_orderpriority, count(*) AS late_orders
FROM orders
WHERE o_orderdate >= DATE '1994-10-01' AND o_orderdate < DATE '1994-10-01' + INTERVAL '3' MONTH
    AND EXISTS (
        SELECT 1 FROM lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate
    )
GROUP BY o_orderpriority
ORDER BY o_orderpriority;
