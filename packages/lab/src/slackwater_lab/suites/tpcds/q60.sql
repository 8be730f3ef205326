-- Sales of a category's items in a month and time zone, over all channels.
WITH wanted AS (
    SELECT i_item_id AS id FROM item WHERE i_category = 'Children'
), sold AS (
    SELECT i_item_id AS id, sum(ss_ext_sales_price) AS sales
    FROM store_sales, date_dim, customer_address, item
    WHERE i_item_id IN (SELECT id FROM wanted) AND ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk
        AND d_year = 2001 AND d_moy = 8 AND ss_addr_sk = ca_address_sk AND ca_gmt_offset = -7
    GROUP BY i_item_id
    UNION ALL
    SELECT i_item_id, sum(cs_ext_sales_price)
    FROM catalog_sales, date_dim, customer_address, item
    WHERE i_item_id IN (SELECT id FROM wanted) AND cs_item_sk = i_item_sk AND cs_sold_date_sk = d_date_sk
        AND d_year = 2001 AND d_moy = 8 AND cs_bill_addr_sk = ca_address_sk AND ca_gmt_offset = -7
    GROUP BY i_item_id
    UNION ALL
    SELECT i_item_id, sum(ws_ext_sales_price)
    FROM web_sales, date_dim, customer_address, item
    WHERE i_item_id IN (SELECT id FROM wanted) AND ws_item_sk = i_item_sk AND ws_sold_date_sk = d_date_sk
        AND d_year = 2001 AND d_moy = 8 AND ws_bill_addr_sk = ca_address_sk AND ca_gmt_offset = -7
    GROUP BY i_item_id
)
SELECT TRANSACTIONALLY id, sum(sales) AS sales
FROM sold
GROUP BY id
ORDER BY id, sales
LIMIT 3;
