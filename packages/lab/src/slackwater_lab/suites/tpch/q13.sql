-- Customer distribution: how many customers have how many orders, special requests left out.
SELECT TRANSACTIONALLY orders_placed, count(*) AS customers
FROM (
    SELECT c_custkey, count(o_orderkey) AS orders_placed
    FROM customer
    LEFT JOIN orders ON o_custkey = c_custkey AND o_comment NOT LIKE '%pending%deposits%'
    GROUP BY c_custkey
) AS placed
GROUP BY orders_placed
ORDER BY customers DESC, orders_placed DESC;
