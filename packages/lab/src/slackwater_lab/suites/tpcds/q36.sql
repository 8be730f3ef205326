-- Gross margins of categories and classes, and in sum, each with its rank among those of its level.
SELECT TRANSACTIONALLY
    sum(ss_net_profit) * 1.0 / nullif(sum(ss_ext_sales_price), 0) AS margin, i_category, i_class,
    grouping(i_category) + grouping(i_class) AS level,
    rank() OVER (
        PARTITION BY grouping(i_category) + grouping(i_class), CASE WHEN grouping(i_class) = 0 THEN i_category END
        ORDER BY sum(ss_net_profit) * 1.0 / nullif(sum(ss_ext_sales_price), 0) ASC
    ) AS place
FROM store_sales
JOIN date_dim ON d_date_sk = ss_sold_date_sk
JOIN item ON i_item_sk = ss_item_sk
JOIN store ON s_store_sk = ss_store_sk
WHERE d_year = 2001 AND s_state IN ('MN', 'MO')
GROUP BY ROLLUP (i_category, i_class)
ORDER BY level DESC, CASE WHEN grouping(i_category) + grouping(i_class) = 0 THEN i_category END, place, i_category, i_class
LIMIT 100;
