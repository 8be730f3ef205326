-- Months of a year in which the sales of a class in a store were far from their mean.
SELECT TRANSACTIONALLY *
FROM (
    SELECT i_category, i_class, i_brand, s_store_name, s_company_name, d_moy, sum(ss_sales_price) AS sales,
        avg(sum(ss_sales_price)) OVER (PARTITION BY i_category, i_brand, s_store_name, s_company_name) AS mean
    FROM store_sales
    JOIN item ON i_item_sk = ss_item_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    WHERE d_year = 2001
        AND (
            (i_category IN ('Home', 'Music') AND i_class IN ('lighting', 'rock'))
            OR (i_category IN ('Shoes', 'Men') AND i_class IN ('athletic', 'shirts'))
        )
    GROUP BY i_category, i_class, i_brand, s_store_name, s_company_name, d_moy
) AS months
WHERE CASE WHEN mean <> 0 THEN abs(sales - mean) / mean END > 0.1
ORDER BY sales - mean, s_store_name, 1, 2, 3, 5, 6, 7, 8
LIMIT 4;
