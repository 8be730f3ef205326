-- Months in which the store sales of a brand were far from their mean, with the months before and after.
WITH monthly AS (
    SELECT
        i_category AS category, i_brand AS brand, s_store_name AS store_name, s_company_name AS company, d_year AS in_year,
        d_moy AS in_month, sum(ss_sales_price) AS sales,
        avg(sum(ss_sales_price)) OVER (PARTITION BY i_category, i_brand, s_store_name, s_company_name, d_year) AS mean,
        rank() OVER (PARTITION BY i_category, i_brand, s_store_name, s_company_name ORDER BY d_year, d_moy) AS place
    FROM store_sales
    JOIN item ON i_item_sk = ss_item_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    WHERE d_year = 2000 OR (d_year = 1999 AND d_moy = 12) OR (d_year = 2001 AND d_moy = 1)
    GROUP BY i_category, i_brand, s_store_name, s_company_name, d_year, d_moy
)
SELECT TRANSACTIONALLY m.category, m.brand, m.store_name, m.company, m.in_year, m.in_month, m.mean, m.sales,
    p.sales AS before, n.sales AS after
FROM monthly AS m
JOIN monthly AS p
    ON p.category = m.category AND p.brand = m.brand AND p.store_name = m.store_name AND p.company = m.company
    AND p.place = m.place - 1
JOIN monthly AS n
    ON n.category = m.category AND n.brand = m.brand AND n.store_name = m.store_name AND n.company = m.company
    AND n.place = m.place + 1
WHERE m.in_year = 2000 AND m.mean > 0 AND CASE WHEN m.mean > 0 THEN abs(m.sales - m.mean) / m.mean END > 0.05
ORDER BY m.sales - m.mean, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
LIMIT 100;
