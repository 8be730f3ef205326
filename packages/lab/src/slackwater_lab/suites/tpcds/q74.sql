-- Customers who paid more on the web from one year to the next, compared with the store.
WITH totals AS (
    SELECT c_customer_id AS id, c_first_name AS first_name, c_last_name AS last_name, d_year AS in_year, 's' AS kind,
        sum(ss_net_paid) AS total
    FROM customer
    JOIN store_sales ON ss_customer_sk = c_customer_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE d_year IN (2000, 2001)
    GROUP BY c_customer_id, c_first_name, c_last_name, d_year
    UNION ALL
    SELECT c_customer_id, c_first_name, c_last_name, d_year, 'w', sum(ws_net_paid)
    FROM customer
    JOIN web_sales ON ws_bill_customer_sk = c_customer_sk
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    WHERE d_year IN (2000, 2001)
    GROUP BY c_customer_id, c_first_name, c_last_name, d_year
)
SELECT TRANSACTIONALLY s2.id, s2.first_name, s2.last_name
FROM totals AS s1
JOIN totals AS s2 ON s2.id = s1.id AND s2.kind = 's' AND s2.in_year = 2001
JOIN totals AS w1 ON w1.id = s1.id AND w1.kind = 'w' AND w1.in_year = 2000
JOIN totals AS w2 ON w2.id = s1.id AND w2.kind = 'w' AND w2.in_year = 2001
WHERE s1.kind = 's' AND s1.in_year = 2000 AND s1.total > 0 AND w1.total > 0
    AND CASE WHEN w1.total > 0 THEN w2.total / w1.total END > CASE WHEN s1.total > 0 THEN s2.total / s1.total END
ORDER BY 1, 3, 2
LIMIT 100;
