-- National market share: a nation's part of the revenue of a region with a type of parts, by year.
SELECT TRANSACTIONALLY
    ordered_in,
    sum(CASE WHEN nation = 'INDIA' THEN volume ELSE 0 END) / nullif(sum(volume), 0) AS share
FROM (
    SELECT
        extract(year FROM o_orderdate) AS ordered_in,
        l_extendedprice * (1 - l_discount) AS volume,
        supplying.n_name AS nation
    FROM lineitem
    JOIN part ON p_partkey = l_partkey
    JOIN supplier ON s_suppkey = l_suppkey
    JOIN orders ON o_orderkey = l_orderkey
    JOIN customer ON c_custkey = o_custkey
    JOIN nation AS buying ON buying.n_nationkey = c_nationkey
    JOIN region ON r_regionkey = buying.n_regionkey
    JOIN nation AS supplying ON supplying.n_nationkey = s_nationkey
    WHERE r_name = 'ASIA' AND p_type = 'SMALL PLATED TIN'
        AND o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
) AS sold
GROUP BY ordered_in
ORDER BY ordered_in;
