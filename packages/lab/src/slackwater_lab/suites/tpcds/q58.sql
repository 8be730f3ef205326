-- Items that brought much the same in all three channels in the week of some day.
WITH week AS (
    SELECT d.d_date_sk AS day
    FROM date_dim AS d
    WHERE d.d_week_seq = (SELECT w.d_week_seq FROM date_dim AS w WHERE w.d_date_sk = 2)
), stores AS (
    SELECT i_item_id AS id, sum(ss_ext_sales_price) AS revenue
    FROM store_sales JOIN item ON i_item_sk = ss_item_sk
    WHERE ss_sold_date_sk IN (SELECT day FROM week)
    GROUP BY i_item_id
), catalogs AS (
    SELECT i_item_id AS id, sum(cs_ext_sales_price) AS revenue
    FROM catalog_sales JOIN item ON i_item_sk = cs_item_sk
    WHERE cs_sold_date_sk IN (SELECT day FROM week)
    GROUP BY i_item_id
), web AS (
    SELECT i_item_id AS id, sum(ws_ext_sales_price) AS revenue
    FROM web_sales JOIN item ON i_item_sk = ws_item_sk
    WHERE ws_sold_date_sk IN (SELECT day FROM week)
    GROUP BY i_item_id
)
SELECT TRANSACTIONALLY
    s.id, s.revenue AS store_revenue, s.revenue / nullif(s.revenue + c.revenue + w.revenue, 0) * 300 AS store_share,
    c.revenue AS catalog_revenue, c.revenue / nullif(s.revenue + c.revenue + w.revenue, 0) * 300 AS catalog_share,
    w.revenue AS web_revenue, w.revenue / nullif(s.revenue + c.revenue + w.revenue, 0) * 300 AS web_share,
    (s.revenue + c.revenue + w.revenue) / 3 AS mean
FROM stores AS s
JOIN catalogs AS c ON c.id = s.id
JOIN web AS w ON w.id = s.id
WHERE s.revenue BETWEEN 0.2 * c.revenue AND 5 * c.revenue AND s.revenue BETWEEN 0.2 * w.revenue AND 5 * w.revenue
    AND c.revenue BETWEEN 0.2 * w.revenue AND 5 * w.revenue
ORDER BY s.id, store_revenue
LIMIT 100;
