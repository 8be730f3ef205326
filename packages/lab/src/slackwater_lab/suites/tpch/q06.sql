-- Forecasting revenue change: what leaving out some discounts would have brought.
SELECT TRANSACTIONALLY sum(l_extendedprice * l_discount) AS gain
FROM lineitem
WHERE l_shipdate >= DATE '1995-01-01' AND l_shipdate < DATE '1995-01-01' + INTERVAL '1' YEAR
    AND l_discount BETWEEN 0.04 AND 0.06 AND l_quantity < 25;
