-- How much people of three kinds at some prices, and of addresses at some profits, bought in stores in a year.
SELECT TRANSACTIONALLY sum(ss_quantity) AS pieces
FROM store_sales, store, customer_demographics, customer_address, date_dim
WHERE s_store_sk = ss_store_sk AND ss_sold_date_sk = d_date_sk AND d_year = 2001
    AND (
        (cd_demo_sk = ss_cdemo_sk AND cd_marital_status = 'W' AND cd_education_status = 'Unknown'
            AND ss_sales_price BETWEEN 100 AND 150)
        OR (cd_demo_sk = ss_cdemo_sk AND cd_marital_status = 'M' AND cd_education_status = 'Primary'
            AND ss_sales_price BETWEEN 50 AND 100)
        OR (cd_demo_sk = ss_cdemo_sk AND cd_marital_status = 'D' AND cd_education_status = 'Secondary'
            AND ss_sales_price BETWEEN 150 AND 200)
    )
    AND (
        (ss_addr_sk = ca_address_sk AND ca_country = 'United States' AND ca_state IN ('ND', 'MI', 'WV')
            AND ss_net_profit BETWEEN 0 AND 2000)
        OR (ss_addr_sk = ca_address_sk AND ca_country = 'United States' AND ca_state IN ('IL', 'TX', 'RI')
            AND ss_net_profit BETWEEN 150 AND 3000)
        OR (ss_addr_sk = ca_address_sk AND ca_country = 'United States' AND ca_state IN ('AZ', 'HI')
            AND ss_net_profit BETWEEN 50 AND 25000)
    );
