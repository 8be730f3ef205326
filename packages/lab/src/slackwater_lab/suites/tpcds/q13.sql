-- Means over store sales of three kinds of households at prices, and of addresses at profits, that belong together.
SELECT TRANSACTIONALLY
    avg(ss_quantity) AS quantity, avg(ss_ext_sales_price) AS price, avg(ss_ext_wholesale_cost) AS mean_cost,
    sum(ss_ext_wholesale_cost) AS cost
FROM store_sales
JOIN store ON s_store_sk = ss_store_sk
JOIN customer_demographics ON cd_demo_sk = ss_cdemo_sk
JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
JOIN customer_address ON ca_address_sk = ss_addr_sk
JOIN date_dim ON d_date_sk = ss_sold_date_sk
WHERE d_year = 2001
    AND (
        (cd_marital_status = 'D' AND cd_education_status = 'Secondary' AND ss_sales_price BETWEEN 100 AND 150 AND hd_dep_count = 3)
        OR (cd_marital_status = 'U' AND cd_education_status = 'Primary' AND ss_sales_price BETWEEN 50 AND 100 AND hd_dep_count = 1)
        OR (cd_marital_status = 'M' AND cd_education_status = '4 yr Degree' AND ss_sales_price BETWEEN 150 AND 200 AND hd_dep_count = 1)
    )
    AND (
        (ca_country = 'United States' AND ca_state IN ('IA', 'NE') AND ss_net_profit BETWEEN 100 AND 200)
        OR (ca_country = 'United States' AND ca_state IN ('ME', 'VT', 'NH') AND ss_net_profit BETWEEN 150 AND 300)
        OR (ca_country = 'United States' AND ca_state IN ('UT', 'NV') AND ss_net_profit BETWEEN 50 AND 250)
    );
