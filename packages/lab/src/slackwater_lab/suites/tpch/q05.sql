-- Local supplier volume: revenue of a year where customer and supplier are of the same nation of a region.
SELECT TRANSACTIONALLY n.n_name, sum(l.l_extendedprice * (1 - l.l_discount)) AS revenue
FROM orders AS o
JOIN customer AS c ON c.c_custkey = o.o_custkey
JOIN lineitem AS l ON l.l_orderkey = o.o_orderkey
JOIN supplier AS s ON s.s_suppkey = l.l_suppkey AND s.s_nationkey = c.c_nationkey
JOIN nation AS n ON n.n_nationkey = s.s_nationkey
JOIN region AS r ON r.r_regionkey = n.n_regionkey
WHERE r.r_name = 'EUROPE' AND o.o_orderdate >= DATE '1996-01-01' AND o.o_orderdate < DATE '1997-01-01'
GROUP BY n.n_name
ORDER BY revenue DESC;
