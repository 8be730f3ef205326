-- Potential part promotion: suppliers of a nation with more of some parts in stock than half of what was shipped.
SELECT TRANSACTIONALLY s_name, s_address
FROM supplier
JOIN nation ON n_nationkey = s_nationkey
WHERE n_name = 'EGYPT' AND s_suppkey IN (
    SELECT ps_suppkey
    FROM partsupp
    WHERE ps_partkey IN (SELECT p_partkey FROM part WHERE p_name LIKE 'lime%')
        AND ps_availqty > (
            SELECT 0.5 * sum(l_quantity)
            FROM lineitem
            WHERE l_partkey = ps_partkey AND l_suppkey = ps_suppkey
                AND l_shipdate >= DATE '1995-01-01' AND l_shipdate < DATE '1996-01-01'
        )
)
ORDER BY s_name;
