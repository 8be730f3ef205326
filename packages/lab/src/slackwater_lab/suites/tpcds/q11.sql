-- Customers whose spending grew faster on the web than in the store.
WITH totals AS (
    SELECT c_customer_id AS id, c_first_name AS first_name, c_last_name AS last_name, c_email_address AS email,
        d_year AS in_year, 's' AS kind, sum(ss_ext_list_price - ss_ext_discount_amt) AS total
    FROM customer
    JOIN store_sales ON ss_customer_sk = c_customer_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    GROUP BY c_customer_id, c_first_name, c_last_name, c_email_address, d_year
    UNION ALL
    SELECT c_customer_id, c_first_name, c_last_name, c_email_address, d_year, 'w',
        sum(ws_ext_list_price - ws_ext_discount_amt)
    FROM customer
    JOIN web_sales ON ws_bill_customer_sk = c_customer_sk
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    GROUP BY c_customer_id, c_first_name, c_last_name, c_email_address, d_year
)
SELECT TRANSACTIONALLY s2.id, s2.first_name, s2.last_name, s2.email
FROM totals AS s1, totals AS s2, totals AS w1, totals AS w2
WHERE s2.id = s1.id AND w1.id = s1.id AND w2.id = s1.id
    AND s1.kind = 's' AND s2.kind = 's' AND w1.kind = 'w' AND w2.kind = 'w'
    AND s1.in_year = 2000 AND s2.in_year = 2001 AND w1.in_year = 2000 AND w2.in_year = 2001
    AND s1.total > 0 AND w1.total > 0
    AND CASE WHEN w1.total > 0 THEN w2.total * 1.0 / w1.total ELSE 0.0 END
        > CASE WHEN s1.total > 0 THEN s2.total * 1.0 / s1.total ELSE 0.0 END
ORDER BY s2.id, s2.first_name, s2.last_name, s2.email
LIMIT 100;
