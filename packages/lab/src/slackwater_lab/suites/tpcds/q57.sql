-- Months in which the catalog sales of a brand were far from their mean, with the months before and after.
WITH monthly AS (
    SELECT
        i_category AS category, i_brand AS brand, cc_name AS center, d_year AS in_year, d_moy AS in_month,
        sum(cs_sales_price) AS sales,
        avg(sum(cs_sales_price)) OVER (PARTITION BY i_category, i_brand, cc_name, d_year) AS mean,
        rank() OVER (PARTITION BY i_category, i_brand, cc_name ORDER BY d_year, d_moy) AS place
    FROM catalog_sales
    JOIN item ON i_item_sk = cs_item_sk
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    JOIN call_center ON cc_call_center_sk = cs_call_center_sk
    WHERE d_year = 2000 OR (d_year = 1999 AND d_moy = 12) OR (d_year = 2001 AND d_moy = 1)
    GROUP BY i_category, i_brand, cc_name, d_year, d_moy
)
SELECT TRANSACTIONALLY m.category, m.brand, m.center, m.in_year, m.in_month, m.mean, m.sales, p.sales AS before,
    n.sales AS after
FROM monthly AS m
JOIN monthly AS p ON p.category = m.category AND p.brand = m.brand AND p.center = m.center AND p.place = m.place - 1
JOIN monthly AS n ON n.category = m.category AND n.brand = m.brand AND n.center = m.center AND n.place = m.place + 1
WHERE m.in_year = 2000 AND m.mean > 0 AND CASE WHEN m.mean > 0 THEN abs(m.sales - m.mean) / m.mean END > 0.05
ORDER BY m.sales - m.mean, 1, 2, 3, 4, 5, 6, 7, 8, 9
LIMIT 100;
