-- Days on which the sum of an item's web sales since the beginning was above that of the stores.
WITH web AS (
    SELECT ws_item_sk AS item, d_date AS day,
        sum(sum(ws_sales_price)) OVER (PARTITION BY ws_item_sk ORDER BY d_date ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS sales
    FROM web_sales
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    WHERE d_month_seq BETWEEN 1212 AND 1223 AND ws_item_sk IS NOT NULL
    GROUP BY ws_item_sk, d_date
), stores AS (
    SELECT ss_item_sk AS item, d_date AS day,
        sum(sum(ss_sales_price)) OVER (PARTITION BY ss_item_sk ORDER BY d_date ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS sales
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE d_month_seq BETWEEN 1212 AND 1223 AND ss_item_sk IS NOT NULL
    GROUP BY ss_item_sk, d_date
)
SELECT TRANSACTIONALLY item, day, on_web, in_stores, web_so_far, stores_so_far
FROM (
    SELECT item, day, on_web, in_stores,
        max(on_web) OVER (PARTITION BY item ORDER BY day ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS web_so_far,
        max(in_stores) OVER (PARTITION BY item ORDER BY day ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS stores_so_far
    FROM (
        SELECT coalesce(web.item, stores.item) AS item, coalesce(web.day, stores.day) AS day, web.sales AS on_web,
            stores.sales AS in_stores
        FROM web
        FULL JOIN stores ON stores.item = web.item AND stores.day = web.day
    ) AS days
) AS sums
WHERE web_so_far > stores_so_far
ORDER BY item, day
LIMIT 4;
