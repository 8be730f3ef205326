-- The best sums of sales of each category at all levels of product, time and store.
SELECT TRANSACTIONALLY *
FROM (
    SELECT i_category, i_class, i_brand, i_product_name, d_year, d_qoy, d_moy, s_store_id, sales,
        rank() OVER (PARTITION BY i_category ORDER BY sales DESC) AS place
    FROM (
        SELECT i_category, i_class, i_brand, i_product_name, d_year, d_qoy, d_moy, s_store_id,
            sum(coalesce(ss_sales_price * ss_quantity, 0)) AS sales
        FROM store_sales
        JOIN date_dim ON d_date_sk = ss_sold_date_sk
        JOIN store ON s_store_sk = ss_store_sk
        JOIN item ON i_item_sk = ss_item_sk
        WHERE d_month_seq BETWEEN 1184 AND 1195
        GROUP BY ROLLUP (i_category, i_class, i_brand, i_product_name, d_year, d_qoy, d_moy, s_store_id)
    ) AS sums
) AS ranked
WHERE place <= 5
ORDER BY i_category, i_class, i_brand, i_product_name, d_year, d_qoy, d_moy, s_store_id, sales, place
LIMIT 100;
