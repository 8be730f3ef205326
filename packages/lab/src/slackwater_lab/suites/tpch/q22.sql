-- Global sales opportunity: customers of some countries with more than the mean balance who have never ordered.
SELECT TRANSACTIONALLY country, count(*) AS customers, sum(c_acctbal) AS balance
FROM (
    SELECT substring(c_phone FROM 1 FOR 2) AS country, c_acctbal
    FROM customer
    WHERE substring(c_phone FROM 1 FOR 2) IN ('10', '18', '23', '27', '31')
        AND c_acctbal > (
            SELECT avg(c_acctbal)
            FROM customer
            WHERE c_acctbal > 0.00 AND substring(c_phone FROM 1 FOR 2) IN ('10', '18', '23', '27', '31')
        )
        AND NOT EXISTS (SELECT 1 FROM orders WHERE o_custkey = c_custkey)
) AS silent
GROUP BY country
ORDER BY country;
