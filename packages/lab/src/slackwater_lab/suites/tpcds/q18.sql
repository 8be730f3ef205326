-- Means of catalog sales to a group of people by item, country, state and county, and summed up to all.
SELECT TRANSACTIONALLY
    i_item_id, ca_country, ca_state, ca_county,
    avg(CAST(cs_quantity AS numeric(12, 2))) AS quantity, avg(CAST(cs_list_price AS numeric(12, 2))) AS list_price,
    avg(CAST(cs_coupon_amt AS numeric(12, 2))) AS coupon, avg(CAST(cs_sales_price AS numeric(12, 2))) AS sales_price,
    avg(CAST(cs_net_profit AS numeric(12, 2))) AS profit, avg(CAST(c_birth_year AS numeric(12, 2))) AS born,
    avg(CAST(buyer.cd_dep_count AS numeric(12, 2))) AS dependants
FROM catalog_sales
JOIN customer_demographics AS buyer ON buyer.cd_demo_sk = cs_bill_cdemo_sk
JOIN customer ON c_customer_sk = cs_bill_customer_sk
JOIN customer_demographics AS today ON today.cd_demo_sk = c_current_cdemo_sk
JOIN customer_address ON ca_address_sk = c_current_addr_sk
JOIN date_dim ON d_date_sk = cs_sold_date_sk
JOIN item ON i_item_sk = cs_item_sk
WHERE buyer.cd_gender = 'M' AND buyer.cd_education_status = 'College' AND c_birth_month IN (3, 5, 7, 10)
    AND d_year = 2001 AND ca_state IN ('AL', 'KS', 'WI')
GROUP BY ROLLUP (i_item_id, ca_country, ca_state, ca_county)
ORDER BY ca_country, ca_state, ca_county, i_item_id
LIMIT 100;
