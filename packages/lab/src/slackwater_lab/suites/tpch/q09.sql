-- Product type profit: what parts with a word in their name brought, by nation and year.
SELECT TRANSACTIONALLY nation, ordered_in, sum(amount) AS profit
FROM (
    SELECT
        n_name AS nation, extract(year FROM o_orderdate) AS ordered_in,
        l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity AS amount
    FROM part, supplier, lineitem, partsupp, orders, nation
    WHERE s_suppkey = l_suppkey AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey AND p_partkey = l_partkey
        AND o_orderkey = l_orderkey AND s_nationkey = n_nationkey AND p_name LIKE '%azure%'
) AS profits
GROUP BY nation, ordered_in
ORDER BY nation, ordered_in DESC;
