-- Parts and suppliers: how many suppliers without complaints can deliver the parts that somebody wants.
SELECT TRANSACTIONALLY p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS suppliers
FROM partsupp
JOIN part ON p_partkey = ps_partkey
WHERE p_brand <> 'Brand#23' AND p_type NOT LIKE 'ECONOMY BURNISHED%' AND p_size IN (3, 9, 14, 19, 23, 36, 45, 49)
    AND ps_suppkey NOT IN (SELECT s_suppkey FROM supplier WHERE s_comment LIKE '%Customer%Complaints%')
GROUP BY p_brand, p_type, p_size
ORDER BY suppliers DESC, p_brand, p_type, p_size;
