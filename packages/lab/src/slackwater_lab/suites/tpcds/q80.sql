-- Sales, returns and profit of dear items that are not on television, by channel and place, with sums.
WITH stores AS (
    SELECT s_store_id AS id, sum(ss_ext_sales_price) AS sales, sum(coalesce(sr_return_amt, 0)) AS returned,
        sum(ss_net_profit - coalesce(sr_net_loss, 0)) AS profit
    FROM store_sales
    LEFT JOIN store_returns ON sr_item_sk = ss_item_sk AND sr_ticket_number = ss_ticket_number
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    JOIN item ON i_item_sk = ss_item_sk
    JOIN promotion ON p_promo_sk = ss_promo_sk
    WHERE d_date BETWEEN DATE '2001-08-20' AND DATE '2001-09-19' AND i_current_price > 40 AND p_channel_tv = 'N'
    GROUP BY s_store_id
), pages AS (
    SELECT cp_catalog_page_id AS id, sum(cs_ext_sales_price) AS sales, sum(coalesce(cr_return_amount, 0)) AS returned,
        sum(cs_net_profit - coalesce(cr_net_loss, 0)) AS profit
    FROM catalog_sales
    LEFT JOIN catalog_returns ON cr_item_sk = cs_item_sk AND cr_order_number = cs_order_number
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    JOIN catalog_page ON cp_catalog_page_sk = cs_catalog_page_sk
    JOIN item ON i_item_sk = cs_item_sk
    JOIN promotion ON p_promo_sk = cs_promo_sk
    WHERE d_date BETWEEN DATE '2001-08-20' AND DATE '2001-09-19' AND i_current_price > 40 AND p_channel_tv = 'N'
    GROUP BY cp_catalog_page_id
), sites AS (
    SELECT web_site_id AS id, sum(ws_ext_sales_price) AS sales, sum(coalesce(wr_return_amt, 0)) AS returned,
        sum(ws_net_profit - coalesce(wr_net_loss, 0)) AS profit
    FROM web_sales
    LEFT JOIN web_returns ON wr_item_sk = ws_item_sk AND wr_order_number = ws_order_number
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    JOIN web_site ON web_site_sk = ws_web_site_sk
    JOIN item ON i_item_sk = ws_item_sk
    JOIN promotion ON p_promo_sk = ws_promo_sk
    WHERE d_date BETWEEN DATE '2001-08-20' AND DATE '2001-09-19' AND i_current_price > 40 AND p_channel_tv = 'N'
    GROUP BY web_site_id
)
SELECT TRANSACTIONALLY channel, id, sum(sales) AS sales, sum(returned) AS returned, sum(profit) AS profit
FROM (
    SELECT 'store channel' AS channel, 'store' || id AS id, sales, returned, profit FROM stores
    UNION ALL
    SELECT 'catalog channel', 'catalog_page' || id, sales, returned, profit FROM pages
    UNION ALL
    SELECT 'web channel', 'web_site' || id, sales, returned, profit FROM sites
) AS channels
GROUP BY ROLLUP (channel, id)
ORDER BY channel, id
LIMIT 100;
