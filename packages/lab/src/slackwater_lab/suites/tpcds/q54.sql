-- Customers who began with some items, by what they spent in their own county in the months around some day, in steps of fifty.
WITH beginners AS (
    SELECT DISTINCT c_customer_sk AS customer, c_current_addr_sk AS address
    FROM (
        SELECT cs_sold_date_sk AS day, cs_bill_customer_sk AS customer, cs_item_sk AS item FROM catalog_sales
        UNION ALL
        SELECT ws_sold_date_sk, ws_bill_customer_sk, ws_item_sk FROM web_sales
    ) AS sold
    JOIN item ON i_item_sk = sold.item
    JOIN date_dim ON d_date_sk = sold.day
    JOIN customer ON c_customer_sk = sold.customer
    WHERE i_category = 'Electronics' AND i_class = 'cameras' AND d_moy = 3 AND d_year = 2001
), spent AS (
    SELECT b.customer, sum(ss_ext_sales_price) AS amount
    FROM beginners AS b
    JOIN store_sales ON ss_customer_sk = b.customer
    JOIN customer_address ON ca_address_sk = b.address
    JOIN store ON s_county = ca_county AND s_state = ca_state
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE d_month_seq BETWEEN (SELECT m.d_month_seq - 1 FROM date_dim AS m WHERE m.d_date_sk = 2)
        AND (SELECT m.d_month_seq + 3 FROM date_dim AS m WHERE m.d_date_sk = 2)
    GROUP BY b.customer
)
SELECT TRANSACTIONALLY segment, count(*) AS customers, segment * 50 AS base
FROM (SELECT CAST(round(amount / 50) AS integer) AS segment FROM spent) AS segments
GROUP BY segment
ORDER BY segment, customers, base
LIMIT 100;
