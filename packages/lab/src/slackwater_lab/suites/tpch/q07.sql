-- Volume shipping: what two nations delivered to each other, by year.
SELECT TRANSACTIONALLY seller, buyer, year_of_shipping, sum(volume) AS revenue
FROM (
    SELECT
        sn.n_name AS seller, cn.n_name AS buyer, extract(year FROM l.l_shipdate) AS year_of_shipping,
        l.l_extendedprice * (1 - l.l_discount) AS volume
    FROM supplier AS s
    JOIN lineitem AS l ON l.l_suppkey = s.s_suppkey
    JOIN orders AS o ON o.o_orderkey = l.l_orderkey
    JOIN customer AS c ON c.c_custkey = o.o_custkey
    JOIN nation AS sn ON sn.n_nationkey = s.s_nationkey
    JOIN nation AS cn ON cn.n_nationkey = c.c_nationkey
    WHERE ((sn.n_name = 'PERU' AND cn.n_name = 'KENYA') OR (sn.n_name = 'KENYA' AND cn.n_name = 'PERU'))
        AND l.l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
) AS shipped
GROUP BY seller, buyer, year_of_shipping
ORDER BY seller, buyer, year_of_shipping;
