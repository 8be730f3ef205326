-- Waiting for one supplier: who of a nation alone was late in orders of several suppliers.
SELECT TRANSACTIONALLY s_name, count(*) AS waits
FROM supplier
JOIN lineitem AS late ON late.l_suppkey = s_suppkey
JOIN orders ON o_orderkey = late.l_orderkey
JOIN nation ON n_nationkey = s_nationkey
WHERE o_orderstatus = 'F' AND late.l_receiptdate > late.l_commitdate AND n_name = 'JAPAN'
    AND EXISTS (
        SELECT 1 FROM lineitem AS any_of
        WHERE any_of.l_orderkey = late.l_orderkey AND any_of.l_suppkey <> late.l_suppkey
    )
    AND NOT EXISTS (
        SELECT 1 FROM lineitem AS too
        WHERE too.l_orderkey = late.l_orderkey AND too.l_suppkey <> late.l_suppkey
            AND too.l_receiptdate > too.l_commitdate
    )
GROUP BY s_name
ORDER BY waits DESC, s_name
LIMIT 5;
