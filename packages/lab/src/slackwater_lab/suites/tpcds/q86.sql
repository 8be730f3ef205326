-- Web sales of categories and classes, and in sum, each with its rank among those of its level.
SELECT TRANSACTIONALLY
    sum(ws_net_paid) AS total, i_category, i_class, grouping(i_category) + grouping(i_class) AS level,
    rank() OVER (
        PARTITION BY grouping(i_category) + grouping(i_class), CASE WHEN grouping(i_class) = 0 THEN i_category END
        ORDER BY sum(ws_net_paid) DESC
    ) AS place
FROM web_sales
JOIN date_dim ON d_date_sk = ws_sold_date_sk
JOIN item ON i_item_sk = ws_item_sk
WHERE d_month_seq BETWEEN 1186 AND 1197
GROUP BY ROLLUP (i_category, i_class)
ORDER BY level DESC, CASE WHEN grouping(i_category) + grouping(i_class) = 0 THEN i_category END, place, i_category, i_class
LIMIT 100;
