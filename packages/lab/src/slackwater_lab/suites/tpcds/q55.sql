-- Sales of the brands of another manager in a month.
SELECT TRANSACTIONALLY i_brand_id AS brand_id, i_brand AS brand, sum(ss_ext_sales_price) AS price
FROM date_dim, store_sales, item
WHERE d_date_sk = ss_sold_date_sk AND ss_item_sk = i_item_sk AND i_manager_id = 36 AND d_moy = 12 AND d_year = 2000
GROUP BY i_brand, i_brand_id
ORDER BY price DESC NULLS LAST, brand_id, brand
LIMIT 2;
