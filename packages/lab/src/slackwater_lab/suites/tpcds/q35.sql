-- Who buys in the store, and on the web or by catalog: dependants of groups of people by state.
SELECT TRANSACTIONALLY
    ca_state, cd_gender, cd_marital_status,
    cd_dep_count, count(*) AS people, min(cd_dep_count) AS least, max(cd_dep_count) AS most, avg(cd_dep_count) AS mean,
    cd_dep_employed_count, count(*) AS people_2, min(cd_dep_employed_count) AS least_2, max(cd_dep_employed_count) AS most_2,
    avg(cd_dep_employed_count) AS mean_2,
    cd_dep_college_count, count(*) AS people_3, min(cd_dep_college_count) AS least_3, max(cd_dep_college_count) AS most_3,
    avg(cd_dep_college_count) AS mean_3
FROM customer AS c
JOIN customer_address ON ca_address_sk = c.c_current_addr_sk
JOIN customer_demographics ON cd_demo_sk = c.c_current_cdemo_sk
WHERE EXISTS (
        SELECT * FROM store_sales, date_dim
        WHERE ss_customer_sk = c.c_customer_sk AND ss_sold_date_sk = d_date_sk AND d_year = 2001 AND d_qoy < 4
    )
    AND (
        EXISTS (
            SELECT * FROM web_sales, date_dim
            WHERE ws_bill_customer_sk = c.c_customer_sk AND ws_sold_date_sk = d_date_sk AND d_year = 2001 AND d_qoy < 4
        )
        OR EXISTS (
            SELECT * FROM catalog_sales, date_dim
            WHERE cs_ship_customer_sk = c.c_customer_sk AND cs_sold_date_sk = d_date_sk AND d_year = 2001 AND d_qoy < 4
        )
    )
GROUP BY ca_state, cd_gender, cd_marital_status, cd_dep_count, cd_dep_employed_count, cd_dep_college_count
ORDER BY ca_state, cd_gender, cd_marital_status, cd_dep_count, cd_dep_employed_count, cd_dep_college_count
LIMIT 100;
