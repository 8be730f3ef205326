-- Pricing summary: how much was billed, shipped and returned until some day.
SELECT TRANSACTIONALLY
    l_returnflag, l_linestatus,
    sum(l_quantity) AS quantity,
    sum(l_extendedprice) AS base_price,
    sum(l_extendedprice * (1 - l_discount)) AS discounted,
    sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS charged,
    avg(l_quantity) AS mean_quantity,
    avg(l_extendedprice) AS mean_price,
    avg(l_discount) AS mean_discount,
    count(*) AS lines
FROM lineitem
WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL '75' DAY
GROUP BY l_returnflag, l_linestatus
ORDER BY l_returnflag, l_linestatus;
