-- Brands of a manager that people bought in stores away from home.
SELECT TRANSACTIONALLY
    i_brand_id AS brand_id, i_brand AS brand, i_manufact_id, i_manufact, sum(ss_ext_sales_price) AS price
FROM store_sales
JOIN date_dim ON d_date_sk = ss_sold_date_sk
JOIN item ON i_item_sk = ss_item_sk
JOIN customer ON c_customer_sk = ss_customer_sk
JOIN customer_address ON ca_address_sk = c_current_addr_sk
JOIN store ON s_store_sk = ss_store_sk AND substring(s_zip FROM 1 FOR 5) <> substring(ca_zip FROM 1 FOR 5)
WHERE i_manager_id = 14 AND d_moy = 12 AND d_year = 2001
GROUP BY i_brand, i_brand_id, i_manufact_id, i_manufact
ORDER BY price DESC NULLS LAST, brand, brand_id, i_manufact_id, i_manufact
LIMIT 3;
