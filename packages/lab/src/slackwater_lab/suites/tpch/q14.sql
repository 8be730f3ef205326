-- Promotion effect: the part of a month's revenue that came from promoted parts, in per cent.
SELECT TRANSACTIONALLY
    100.00 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount) ELSE 0 END)
        / nullif(sum(l_extendedprice * (1 - l_discount)), 0) AS promoted
FROM lineitem
JOIN part ON p_partkey = l_partkey
WHERE l_shipdate >= DATE '1996-03-01' AND l_shipdate < DATE '1996-03-01' + INTERVAL '1 month';
