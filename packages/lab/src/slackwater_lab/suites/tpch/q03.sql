-- Shipping priority: the orders of a market segment with the most revenue that was not shipped on some day.
SELECT TRANSACTIONALLY
    l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
FROM customer, orders, lineitem
WHERE c_mktsegment = 'MACHINERY' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
    AND o_orderdate < DATE '1995-03-20' AND l_shipdate > DATE '1995-03-20'
GROUP BY l_orderkey, o_orderdate, o_shippriority
ORDER BY revenue DESC NULLS LAST, o_orderdate, l_orderkey
LIMIT 2;
