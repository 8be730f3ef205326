-- Small quantities: what orders of far less than the mean quantity of a part brought in a year.
SELECT TRANSACTIONALLY sum(l_extendedprice) / 7.0 AS mean_yearly
FROM lineitem
JOIN part ON p_partkey = l_partkey
WHERE p_brand = 'Brand#41' AND p_container = 'JUMBO CAN'
    AND l_quantity < (SELECT 0.8 * avg(all_of.l_quantity) FROM lineitem AS all_of WHERE all_of.l_partkey = p_partkey);
