-- Sales of items of some colours in a month and time zone, over all channels.
WITH wanted AS (
    SELECT i_item_id AS id FROM item WHERE i_color IN ('orchid', 'chiffon', 'lace')
), sold AS (
    SELECT i_item_id AS id, sum(ss_ext_sales_price) AS sales
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN customer_address ON ca_address_sk = ss_addr_sk
    JOIN item ON i_item_sk = ss_item_sk
    WHERE i_item_id IN (SELECT id FROM wanted) AND d_year = 2001 AND d_moy = 7 AND ca_gmt_offset = -8
    GROUP BY i_item_id
    UNION ALL
    SELECT i_item_id, sum(cs_ext_sales_price)
    FROM catalog_sales
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    JOIN customer_address ON ca_address_sk = cs_bill_addr_sk
    JOIN item ON i_item_sk = cs_item_sk
    WHERE i_item_id IN (SELECT id FROM wanted) AND d_year = 2001 AND d_moy = 7 AND ca_gmt_offset = -8
    GROUP BY i_item_id
    UNION ALL
    SELECT i_item_id, sum(ws_ext_sales_price)
    FROM web_sales
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    JOIN customer_address ON ca_address_sk = ws_bill_addr_sk
    JOIN item ON i_item_sk = ws_item_sk
    WHERE i_item_id IN (SELECT id FROM wanted) AND d_year = 2001 AND d_moy = 7 AND ca_gmt_offset = -8
    GROUP BY i_item_id
)
SELECT TRANSACTIONALLY id, sum(sales) AS sales
FROM sold
GROUP BY id
ORDER BY sales, id
LIMIT 3;
