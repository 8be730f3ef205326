-- Extended prices of a manufacturer's brands in a month, by year.
SELECT TRANSACTIONALLY d_year, i_brand_id AS brand_id, i_brand AS brand, sum(ss_ext_sales_price) AS price
FROM store_sales
JOIN date_dim ON d_date_sk = ss_sold_date_sk
JOIN item ON i_item_sk = ss_item_sk
WHERE i_manufact_id = 77 AND d_moy = 12
GROUP BY d_year, i_brand, i_brand_id
ORDER BY d_year, price DESC NULLS LAST, brand_id, brand
LIMIT 4;
