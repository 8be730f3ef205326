-- Catalog sales by zip code: listed codes, some states, or dear items.
SELECT TRANSACTIONALLY ca_zip, sum(cs_sales_price) AS sales
FROM catalog_sales
JOIN customer ON c_customer_sk = cs_bill_customer_sk
JOIN customer_address ON ca_address_sk = c_current_addr_sk
JOIN date_dim ON d_date_sk = cs_sold_date_sk
WHERE (substring(ca_zip FROM 1 FOR 5) IN ('50311', '61820', '73301') OR ca_state IN ('OR', 'MT') OR cs_sales_price > 400)
    AND d_qoy = 3 AND d_year = 2001
GROUP BY ca_zip
ORDER BY ca_zip
LIMIT 3;
