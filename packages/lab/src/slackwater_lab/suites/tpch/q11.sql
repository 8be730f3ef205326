-- Important stock: the parts that are a notable part of the value of a nation's stock.
SELECT TRANSACTIONALLY ps_partkey, sum(ps_supplycost * ps_availqty) AS stock
FROM partsupp
JOIN supplier ON s_suppkey = ps_suppkey
JOIN nation ON n_nationkey = s_nationkey
WHERE n_name = 'CANADA'
GROUP BY ps_partkey
HAVING sum(ps_supplycost * ps_availqty) > (
    SELECT sum(ps_supplycost * ps_availqty) * 0.2
    FROM partsupp
    JOIN supplier ON s_suppkey = ps_suppkey
    JOIN nation ON n_nationkey = s_nationkey
    WHERE n_name = 'CANADA'
)
ORDER BY stock DESC;
