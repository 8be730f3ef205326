-- Counties where the sales on the web grew faster than in the store, from the first to the second and third quarter.
WITH stores AS (
    SELECT ca_county AS county, d_qoy AS quarter, d_year AS in_year, sum(ss_ext_sales_price) AS sales
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN customer_address ON ca_address_sk = ss_addr_sk
    GROUP BY ca_county, d_qoy, d_year
), web AS (
    SELECT ca_county AS county, d_qoy AS quarter, d_year AS in_year, sum(ws_ext_sales_price) AS sales
    FROM web_sales
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    JOIN customer_address ON ca_address_sk = ws_bill_addr_sk
    GROUP BY ca_county, d_qoy, d_year
)
SELECT TRANSACTIONALLY
    s1.county, s1.in_year, w2.sales * 1.0 / nullif(w1.sales, 0) AS web_1_2, s2.sales * 1.0 / nullif(s1.sales, 0) AS store_1_2,
    w3.sales * 1.0 / nullif(w2.sales, 0) AS web_2_3, s3.sales * 1.0 / nullif(s2.sales, 0) AS store_2_3
FROM stores AS s1
JOIN stores AS s2 ON s2.county = s1.county AND s2.quarter = 2 AND s2.in_year = 2001
JOIN stores AS s3 ON s3.county = s1.county AND s3.quarter = 3 AND s3.in_year = 2001
JOIN web AS w1 ON w1.county = s1.county AND w1.quarter = 1 AND w1.in_year = 2001
JOIN web AS w2 ON w2.county = s1.county AND w2.quarter = 2 AND w2.in_year = 2001
JOIN web AS w3 ON w3.county = s1.county AND w3.quarter = 3 AND w3.in_year = 2001
WHERE s1.quarter = 1 AND s1.in_year = 2001
    AND CASE WHEN w1.sales > 0 THEN w2.sales * 1.0 / w1.sales END > CASE WHEN s1.sales > 0 THEN s2.sales * 1.0 / s1.sales END
    AND CASE WHEN w2.sales > 0 THEN w3.sales * 1.0 / w2.sales END > CASE WHEN s2.sales > 0 THEN s3.sales * 1.0 / s2.sales END
ORDER BY s1.county;
