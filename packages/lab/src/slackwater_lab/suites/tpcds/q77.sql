-- Sales, returns and profit of a month by channel and place, with sums of each channel and of all.
WITH ss AS (
    SELECT s_store_sk AS id, sum(ss_ext_sales_price) AS sales, sum(ss_net_profit) AS profit
    FROM store_sales JOIN date_dim ON d_date_sk = ss_sold_date_sk JOIN store ON s_store_sk = ss_store_sk
    WHERE d_date BETWEEN DATE '2001-08-06' AND DATE '2001-09-05'
    GROUP BY s_store_sk
), sr AS (
    SELECT s_store_sk AS id, sum(sr_return_amt) AS returned, sum(sr_net_loss) AS loss
    FROM store_returns JOIN date_dim ON d_date_sk = sr_returned_date_sk JOIN store ON s_store_sk = sr_store_sk
    WHERE d_date BETWEEN DATE '2001-08-06' AND DATE '2001-09-05'
    GROUP BY s_store_sk
), cs AS (
    SELECT cs_call_center_sk AS id, sum(cs_ext_sales_price) AS sales, sum(cs_net_profit) AS profit
    FROM catalog_sales JOIN date_dim ON d_date_sk = cs_sold_date_sk
    WHERE d_date BETWEEN DATE '2001-08-06' AND DATE '2001-09-05'
    GROUP BY cs_call_center_sk
), cr AS (
    SELECT sum(cr_return_amount) AS returned, sum(cr_net_loss) AS loss
    FROM catalog_returns JOIN date_dim ON d_date_sk = cr_returned_date_sk
    WHERE d_date BETWEEN DATE '2001-08-06' AND DATE '2001-09-05'
), ws AS (
    SELECT wp_web_page_sk AS id, sum(ws_ext_sales_price) AS sales, sum(ws_net_profit) AS profit
    FROM web_sales JOIN date_dim ON d_date_sk = ws_sold_date_sk JOIN web_page ON wp_web_page_sk = ws_web_page_sk
    WHERE d_date BETWEEN DATE '2001-08-06' AND DATE '2001-09-05'
    GROUP BY wp_web_page_sk
), wr AS (
    SELECT wp_web_page_sk AS id, sum(wr_return_amt) AS returned, sum(wr_net_loss) AS loss
    FROM web_returns JOIN date_dim ON d_date_sk = wr_returned_date_sk JOIN web_page ON wp_web_page_sk = wr_web_page_sk
    WHERE d_date BETWEEN DATE '2001-08-06' AND DATE '2001-09-05'
    GROUP BY wp_web_page_sk
)
SELECT TRANSACTIONALLY channel, id, sum(sales) AS sales, sum(returned) AS returned, sum(profit) AS profit
FROM (
    SELECT 'store channel' AS channel, ss.id, sales, coalesce(returned, 0) AS returned, profit - coalesce(loss, 0) AS profit
    FROM ss LEFT JOIN sr ON sr.id = ss.id
    UNION ALL
    SELECT 'catalog channel', cs.id, sales, returned, profit - loss FROM cs CROSS JOIN cr
    UNION ALL
    SELECT 'web channel', ws.id, sales, coalesce(returned, 0), profit - coalesce(loss, 0)
    FROM ws LEFT JOIN wr ON wr.id = ws.id
) AS channels
GROUP BY ROLLUP (channel, id)
ORDER BY channel, id, returned DESC NULLS LAST
LIMIT 100;
