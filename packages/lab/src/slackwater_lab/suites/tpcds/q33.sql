-- Sales of the manufacturers of a category in a month and time zone, over all channels.
WITH wanted AS (
    SELECT i_manufact_id AS manufacturer FROM item WHERE i_category IN ('Home')
), sold AS (
    SELECT i_manufact_id AS manufacturer, sum(ss_ext_sales_price) AS sales
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN customer_address ON ca_address_sk = ss_addr_sk
    JOIN item ON i_item_sk = ss_item_sk
    WHERE i_manufact_id IN (SELECT manufacturer FROM wanted) AND d_year = 2001 AND d_moy = 1 AND ca_gmt_offset = -6
    GROUP BY i_manufact_id
    UNION ALL
    SELECT i_manufact_id, sum(cs_ext_sales_price)
    FROM catalog_sales
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    JOIN customer_address ON ca_address_sk = cs_bill_addr_sk
    JOIN item ON i_item_sk = cs_item_sk
    WHERE i_manufact_id IN (SELECT manufacturer FROM wanted) AND d_year = 2001 AND d_moy = 1 AND ca_gmt_offset = -6
    GROUP BY i_manufact_id
    UNION ALL
    SELECT i_manufact_id, sum(ws_ext_sales_price)
    FROM web_sales
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    JOIN customer_address ON ca_address_sk = ws_bill_addr_sk
    JOIN item ON i_item_sk = ws_item_sk
    WHERE i_manufact_id IN (SELECT manufacturer FROM wanted) AND d_year = 2001 AND d_moy = 1 AND ca_gmt_offset = -6
    GROUP BY i_manufact_id
)
SELECT TRANSACTIONALLY manufacturer, sum(sales) AS sales
FROM sold
GROUP BY manufacturer
ORDER BY sales, manufacturer
LIMIT 3;
