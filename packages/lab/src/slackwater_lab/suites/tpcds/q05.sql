-- Sales, returns and profit of two weeks by channel and place, with sums of each channel and of all.
WITH stores AS (
    SELECT s_store_id AS id, sum(sold) AS sales, sum(profit) AS profit, sum(back) AS returned, sum(loss) AS loss
    FROM (
        SELECT ss_store_sk AS place, ss_sold_date_sk AS day, ss_ext_sales_price AS sold, ss_net_profit AS profit,
            CAST(0 AS numeric(7, 2)) AS back, CAST(0 AS numeric(7, 2)) AS loss
        FROM store_sales
        UNION ALL
        SELECT sr_store_sk, sr_returned_date_sk, CAST(0 AS numeric(7, 2)), CAST(0 AS numeric(7, 2)), sr_return_amt, sr_net_loss
        FROM store_returns
    ) AS moved
    JOIN date_dim ON d_date_sk = day
    JOIN store ON s_store_sk = place
    WHERE d_date BETWEEN DATE '2001-03-05' AND DATE '2001-03-19'
    GROUP BY s_store_id
), pages AS (
    SELECT cp_catalog_page_id AS id, sum(sold) AS sales, sum(profit) AS profit, sum(back) AS returned, sum(loss) AS loss
    FROM (
        SELECT cs_catalog_page_sk AS place, cs_sold_date_sk AS day, cs_ext_sales_price AS sold, cs_net_profit AS profit,
            CAST(0 AS numeric(7, 2)) AS back, CAST(0 AS numeric(7, 2)) AS loss
        FROM catalog_sales
        UNION ALL
        SELECT cr_catalog_page_sk, cr_returned_date_sk, CAST(0 AS numeric(7, 2)), CAST(0 AS numeric(7, 2)),
            cr_return_amount, cr_net_loss
        FROM catalog_returns
    ) AS moved
    JOIN date_dim ON d_date_sk = day
    JOIN catalog_page ON cp_catalog_page_sk = place
    WHERE d_date BETWEEN DATE '2001-03-05' AND DATE '2001-03-19'
    GROUP BY cp_catalog_page_id
), sites AS (
    SELECT web_site_id AS id, sum(sold) AS sales, sum(profit) AS profit, sum(back) AS returned, sum(loss) AS loss
    FROM (
        SELECT ws_web_site_sk AS place, ws_sold_date_sk AS day, ws_ext_sales_price AS sold, ws_net_profit AS profit,
            CAST(0 AS numeric(7, 2)) AS back, CAST(0 AS numeric(7, 2)) AS loss
        FROM web_sales
        UNION ALL
        SELECT ws_web_site_sk, wr_returned_date_sk, CAST(0 AS numeric(7, 2)), CAST(0 AS numeric(7, 2)),
            wr_return_amt, wr_net_loss
        FROM web_returns
        LEFT JOIN web_sales ON ws_item_sk = wr_item_sk AND ws_order_number = wr_order_number
    ) AS moved
    JOIN date_dim ON d_date_sk = day
    JOIN web_site ON web_site_sk = place
    WHERE d_date BETWEEN DATE '2001-03-05' AND DATE '2001-03-19'
    GROUP BY web_site_id
)
SELECT TRANSACTIONALLY channel, id, sum(sales) AS sales, sum(returned) AS returned, sum(profit) AS profit
FROM (
    SELECT 'store channel' AS channel, 'store' || id AS id, sales, returned, profit - loss AS profit FROM stores
    UNION ALL
    SELECT 'catalog channel', 'catalog_page' || id, sales, returned, profit - loss FROM pages
    UNION ALL
    SELECT 'web channel', 'web_site' || id, sales, returned, profit - loss FROM sites
) AS channels
GROUP BY ROLLUP (channel, id)
ORDER BY channel, id
LIMIT 100;
