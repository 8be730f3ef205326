-- Who buys in the store, and on the web or by catalog, in some counties: groups of people and their numbers.
SELECT TRANSACTIONALLY
    cd_gender, cd_marital_status, cd_education_status, count(*) AS people,
    cd_purchase_estimate, count(*) AS people_2, cd_credit_rating, count(*) AS people_3, cd_dep_count, count(*) AS people_4,
    cd_dep_employed_count, count(*) AS people_5, cd_dep_college_count, count(*) AS people_6
FROM customer AS c
JOIN customer_address AS a ON a.ca_address_sk = c.c_current_addr_sk
JOIN customer_demographics ON cd_demo_sk = c.c_current_cdemo_sk
WHERE a.ca_county IN ('Adams County', 'Lane County', 'Polk County')
    AND EXISTS (
        SELECT 1 FROM store_sales JOIN date_dim ON d_date_sk = ss_sold_date_sk
        WHERE ss_customer_sk = c.c_customer_sk AND d_year = 2001 AND d_moy BETWEEN 2 AND 5
    )
    AND (
        EXISTS (
            SELECT 1 FROM web_sales JOIN date_dim ON d_date_sk = ws_sold_date_sk
            WHERE ws_bill_customer_sk = c.c_customer_sk AND d_year = 2001 AND d_moy BETWEEN 2 AND 5
        )
        OR EXISTS (
            SELECT 1 FROM catalog_sales JOIN date_dim ON d_date_sk = cs_sold_date_sk
            WHERE cs_ship_customer_sk = c.c_customer_sk AND d_year = 2001 AND d_moy BETWEEN 2 AND 5
        )
    )
GROUP BY
    cd_gender, cd_marital_status, cd_education_status, cd_purchase_estimate, cd_credit_rating, cd_dep_count,
    cd_dep_employed_count, cd_dep_college_count
ORDER BY
    cd_gender, cd_marital_status, cd_education_status, cd_purchase_estimate, cd_credit_rating, cd_dep_count,
    cd_dep_employed_count, cd_dep_college_count
LIMIT 100;
