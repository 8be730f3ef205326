-- Who buys in the store, and neither on the web nor by catalog, in some states: groups of people and their numbers.
SELECT TRANSACTIONALLY
    cd_gender, cd_marital_status, cd_education_status, count(*) AS people, cd_purchase_estimate, count(*) AS people_2,
    cd_credit_rating, count(*) AS people_3
FROM customer AS c
JOIN customer_address ON ca_address_sk = c.c_current_addr_sk
JOIN customer_demographics ON cd_demo_sk = c.c_current_cdemo_sk
WHERE ca_state IN ('CO', 'NC', 'TX')
    AND EXISTS (
        SELECT 1 FROM store_sales JOIN date_dim ON d_date_sk = ss_sold_date_sk
        WHERE ss_customer_sk = c.c_customer_sk AND d_year = 2001 AND d_moy BETWEEN 1 AND 3
    )
    AND NOT EXISTS (
        SELECT 1 FROM web_sales JOIN date_dim ON d_date_sk = ws_sold_date_sk
        WHERE ws_bill_customer_sk = c.c_customer_sk AND d_year = 2001 AND d_moy BETWEEN 1 AND 3
    )
    AND NOT EXISTS (
        SELECT 1 FROM catalog_sales JOIN date_dim ON d_date_sk = cs_sold_date_sk
        WHERE cs_ship_customer_sk = c.c_customer_sk AND d_year = 2001 AND d_moy BETWEEN 1 AND 3
    )
GROUP BY cd_gender, cd_marital_status, cd_education_status, cd_purchase_estimate, cd_credit_rating
ORDER BY cd_gender, cd_marital_status, cd_education_status, cd_purchase_estimate, cd_credit_rating
LIMIT 3;
