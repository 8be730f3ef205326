-- The items of each channel that are returned most, by quantity and by amount.
SELECT TRANSACTIONALLY channel, item, ratio, by_quantity, by_amount
FROM (
    SELECT 'web' AS channel, item, ratio, by_quantity, by_amount
    FROM (
        SELECT item, ratio, rank() OVER (ORDER BY ratio) AS by_quantity, rank() OVER (ORDER BY amounts) AS by_amount
        FROM (
            SELECT ws_item_sk AS item,
                CAST(sum(coalesce(wr_return_quantity, 0)) AS numeric(15, 4)) / CAST(sum(coalesce(ws_quantity, 0)) AS numeric(15, 4)) AS ratio,
                CAST(sum(coalesce(wr_return_amt, 0)) AS numeric(15, 4)) / CAST(sum(coalesce(ws_net_paid, 0)) AS numeric(15, 4)) AS amounts
            FROM web_sales
            JOIN web_returns ON wr_order_number = ws_order_number AND wr_item_sk = ws_item_sk
            JOIN date_dim ON d_date_sk = ws_sold_date_sk
            WHERE wr_return_amt > 90 AND ws_net_profit > 1 AND ws_net_paid > 0 AND ws_quantity > 0 AND d_year = 2001 AND d_moy = 11
            GROUP BY ws_item_sk
        ) AS ratios
    ) AS ranked
    WHERE by_quantity <= 2 OR by_amount <= 2
    UNION
    SELECT 'catalog', item, ratio, by_quantity, by_amount
    FROM (
        SELECT item, ratio, rank() OVER (ORDER BY ratio) AS by_quantity, rank() OVER (ORDER BY amounts) AS by_amount
        FROM (
            SELECT cs_item_sk AS item,
                CAST(sum(coalesce(cr_return_quantity, 0)) AS numeric(15, 4)) / CAST(sum(coalesce(cs_quantity, 0)) AS numeric(15, 4)) AS ratio,
                CAST(sum(coalesce(cr_return_amount, 0)) AS numeric(15, 4)) / CAST(sum(coalesce(cs_net_paid, 0)) AS numeric(15, 4)) AS amounts
            FROM catalog_sales
            JOIN catalog_returns ON cr_order_number = cs_order_number AND cr_item_sk = cs_item_sk
            JOIN date_dim ON d_date_sk = cs_sold_date_sk
            WHERE cr_return_amount > 90 AND cs_net_profit > 1 AND cs_net_paid > 0 AND cs_quantity > 0 AND d_year = 2001 AND d_moy = 11
            GROUP BY cs_item_sk
        ) AS ratios
    ) AS ranked
    WHERE by_quantity <= 2 OR by_amount <= 2
    UNION
    SELECT 'store', item, ratio, by_quantity, by_amount
    FROM (
        SELECT item, ratio, rank() OVER (ORDER BY ratio) AS by_quantity, rank() OVER (ORDER BY amounts) AS by_amount
        FROM (
            SELECT ss_item_sk AS item,
                CAST(sum(coalesce(sr_return_quantity, 0)) AS numeric(15, 4)) / CAST(sum(coalesce(ss_quantity, 0)) AS numeric(15, 4)) AS ratio,
                CAST(sum(coalesce(sr_return_amt, 0)) AS numeric(15, 4)) / CAST(sum(coalesce(ss_net_paid, 0)) AS numeric(15, 4)) AS amounts
            FROM store_sales
            JOIN store_returns ON sr_ticket_number = ss_ticket_number AND sr_item_sk = ss_item_sk
            JOIN date_dim ON d_date_sk = ss_sold_date_sk
            WHERE sr_return_amt > 90 AND ss_net_profit > 1 AND ss_net_paid > 0 AND ss_quantity > 0 AND d_year = 2001 AND d_moy = 11
            GROUP BY ss_item_sk
        ) AS ratios
    ) AS ranked
    WHERE by_quantity <= 2 OR by_amount <= 2
) AS channels
ORDER BY 1, 4, 5, 2
LIMIT 100;
