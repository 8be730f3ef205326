-- Minimum cost supplier: who of a region delivers a part of some size and type at the lowest cost.
SELECT TRANSACTIONALLY s.s_acctbal, s.s_name, n.n_name, p.p_partkey, p.p_mfgr, s.s_address, s.s_phone, s.s_comment
FROM part AS p
JOIN partsupp AS ps ON ps.ps_partkey = p.p_partkey
JOIN supplier AS s ON s.s_suppkey = ps.ps_suppkey
JOIN nation AS n ON n.n_nationkey = s.s_nationkey
JOIN region AS r ON r.r_regionkey = n.n_regionkey
WHERE p.p_size = 12 AND p.p_type LIKE '%NICKEL' AND r.r_name = 'AFRICA'
    AND ps.ps_supplycost = (
        SELECT min(other.ps_supplycost)
        FROM partsupp AS other
        JOIN supplier AS os ON os.s_suppkey = other.ps_suppkey
        JOIN nation AS o_n ON o_n.n_nationkey = os.s_nationkey
        JOIN region AS o_r ON o_r.r_regionkey = o_n.n_regionkey
        WHERE other.ps_partkey = p.p_partkey AND o_r.r_name = 'AFRICA'
    )
ORDER BY s.s_acctbal DESC NULLS LAST, n.n_name, s.s_name, p.p_partkey, s.s_suppkey
LIMIT 5;
