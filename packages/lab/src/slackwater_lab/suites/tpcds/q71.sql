-- Sales of a manager's brands at breakfast and dinner, by minute, over all channels.
SELECT TRANSACTIONALLY i_brand_id AS brand_id, i_brand AS brand, t_hour, t_minute, sum(price) AS price
FROM (
    SELECT ws_ext_sales_price AS price, ws_item_sk AS item, ws_sold_time_sk AS at
    FROM web_sales JOIN date_dim ON d_date_sk = ws_sold_date_sk WHERE d_moy = 12 AND d_year = 2001
    UNION ALL
    SELECT cs_ext_sales_price, cs_item_sk, cs_sold_time_sk
    FROM catalog_sales JOIN date_dim ON d_date_sk = cs_sold_date_sk WHERE d_moy = 12 AND d_year = 2001
    UNION ALL
    SELECT ss_ext_sales_price, ss_item_sk, ss_sold_time_sk
    FROM store_sales JOIN date_dim ON d_date_sk = ss_sold_date_sk WHERE d_moy = 12 AND d_year = 2001
) AS sold
JOIN item ON i_item_sk = sold.item
JOIN time_dim ON t_time_sk = sold.at
WHERE i_manager_id = 1 AND t_meal_time IN ('breakfast', 'dinner')
GROUP BY i_brand, i_brand_id, t_hour, t_minute
ORDER BY price DESC NULLS LAST, brand_id, t_hour, t_minute;
