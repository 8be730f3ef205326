-- Customers whose spending grew faster by catalog than in the store and on the web.
WITH totals AS (
    SELECT
        c_customer_id AS id, c_first_name AS first_name, c_last_name AS last_name, c_preferred_cust_flag AS preferred,
        d_year AS in_year, 's' AS kind,
        sum((ss_ext_list_price - ss_ext_wholesale_cost - ss_ext_discount_amt + ss_ext_sales_price) / 2) AS total
    FROM customer
    JOIN store_sales ON ss_customer_sk = c_customer_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    GROUP BY c_customer_id, c_first_name, c_last_name, c_preferred_cust_flag, d_year
    UNION ALL
    SELECT
        c_customer_id, c_first_name, c_last_name, c_preferred_cust_flag, d_year, 'c',
        sum((cs_ext_list_price - cs_ext_wholesale_cost - cs_ext_discount_amt + cs_ext_sales_price) / 2)
    FROM customer
    JOIN catalog_sales ON cs_bill_customer_sk = c_customer_sk
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    GROUP BY c_customer_id, c_first_name, c_last_name, c_preferred_cust_flag, d_year
    UNION ALL
    SELECT
        c_customer_id, c_first_name, c_last_name, c_preferred_cust_flag, d_year, 'w',
        sum((ws_ext_list_price - ws_ext_wholesale_cost - ws_ext_discount_amt + ws_ext_sales_price) / 2)
    FROM customer
    JOIN web_sales ON ws_bill_customer_sk = c_customer_sk
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    GROUP BY c_customer_id, c_first_name, c_last_name, c_preferred_cust_flag, d_year
)
SELECT TRANSACTIONALLY s2.id, s2.first_name, s2.last_name, s2.preferred
FROM totals AS s1
JOIN totals AS s2 ON s2.id = s1.id
JOIN totals AS c1 ON c1.id = s1.id
JOIN totals AS c2 ON c2.id = s1.id
JOIN totals AS w1 ON w1.id = s1.id
JOIN totals AS w2 ON w2.id = s1.id
WHERE s1.kind = 's' AND s2.kind = 's' AND c1.kind = 'c' AND c2.kind = 'c' AND w1.kind = 'w' AND w2.kind = 'w'
    AND s1.in_year = 2000 AND c1.in_year = 2000 AND w1.in_year = 2000
    AND s2.in_year = 2001 AND c2.in_year = 2001 AND w2.in_year = 2001
    AND s1.total > 0 AND c1.total > 0 AND w1.total > 0
    AND CASE WHEN c1.total > 0 THEN c2.total / c1.total END > CASE WHEN s1.total > 0 THEN s2.total / s1.total END
    AND CASE WHEN c1.total > 0 THEN c2.total / c1.total END > CASE WHEN w1.total > 0 THEN w2.total / w1.total END
ORDER BY s2.id, s2.first_name, s2.last_name, s2.preferred
LIMIT 100;
