-- Top supplier: who brought the most revenue in a quarter.
WITH revenue AS (
    SELECT l_suppkey AS supplier_no, sum(l_extendedprice * (1 - l_discount)) AS total
    FROM lineitem
    WHERE l_shipdate >= DATE '1997-04-01' AND l_shipdate < DATE '1997-04-01' + INTERVAL '3 months'
    GROUP BY l_suppkey
)
SELECT TRANSACTIONALLY s_suppkey, s_name, s_address, s_phone, total
FROM supplier
JOIN revenue ON supplier_no = s_suppkey
WHERE total = (SELECT max(total) FROM revenue)
ORDER BY s_suppkey;
