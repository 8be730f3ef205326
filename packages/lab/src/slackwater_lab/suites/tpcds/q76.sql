-- Sales that lack a reference, by channel, quarter and category.
SELECT TRANSACTIONALLY channel, missing, in_year, quarter, category, count(*) AS sales, sum(price) AS amount
FROM (
    SELECT 'store' AS channel, 'ss_hdemo_sk' AS missing, d_year AS in_year, d_qoy AS quarter, i_category AS category,
        ss_ext_sales_price AS price
    FROM store_sales JOIN item ON i_item_sk = ss_item_sk JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE ss_hdemo_sk IS NULL
    UNION ALL
    SELECT 'web', 'ws_promo_sk', d_year, d_qoy, i_category, ws_ext_sales_price
    FROM web_sales JOIN item ON i_item_sk = ws_item_sk JOIN date_dim ON d_date_sk = ws_sold_date_sk
    WHERE ws_promo_sk IS NULL
    UNION ALL
    SELECT 'catalog', 'cs_ship_mode_sk', d_year, d_qoy, i_category, cs_ext_sales_price
    FROM catalog_sales JOIN item ON i_item_sk = cs_item_sk JOIN date_dim ON d_date_sk = cs_sold_date_sk
    WHERE cs_ship_mode_sk IS NULL
) AS lacking
GROUP BY channel, missing, in_year, quarter, category
ORDER BY channel, missing, in_year, quarter, category
LIMIT 4;
