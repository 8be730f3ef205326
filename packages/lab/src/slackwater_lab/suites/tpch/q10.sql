-- Returned items: the customers whose returns of a quarter cost the most revenue.
SELECT TRANSACTIONALLY
    c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS lost, c_acctbal, n_name, c_address, c_phone, c_comment
FROM customer
JOIN orders ON o_custkey = c_custkey
JOIN lineitem ON l_orderkey = o_orderkey
JOIN nation ON n_nationkey = c_nationkey
WHERE o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1994-04-01' AND l_returnflag = 'R'
GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
ORDER BY lost DESC NULLS LAST, c_custkey
LIMIT 2;
