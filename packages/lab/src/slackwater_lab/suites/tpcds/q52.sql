-- Sales of a manager's brands in a month.
SELECT TRANSACTIONALLY d_year, i_brand_id AS brand_id, i_brand AS brand, sum(ss_ext_sales_price) AS price
FROM date_dim
JOIN store_sales ON ss_sold_date_sk = d_date_sk
JOIN item ON i_item_sk = ss_item_sk
WHERE i_manager_id = 2 AND d_moy = 11 AND d_year = 2001
GROUP BY d_year, i_brand, i_brand_id
ORDER BY d_year, price DESC NULLS LAST, brand_id, brand
LIMIT 2;
