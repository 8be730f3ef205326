-- Quarters in which the sales of a manufacturer's items were far from their mean.
SELECT TRANSACTIONALLY manufacturer, sales, mean
FROM (
    SELECT i_manufact_id AS manufacturer, sum(ss_sales_price) AS sales,
        avg(sum(ss_sales_price)) OVER (PARTITION BY i_manufact_id) AS mean
    FROM store_sales
    JOIN item ON i_item_sk = ss_item_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    WHERE d_month_seq IN (1188, 1189, 1190, 1191, 1192, 1193)
        AND (
            (i_category IN ('Books', 'Home') AND i_class IN ('poetry', 'rugs') AND i_brand IN ('corpbrand #3', 'maxibrand #8'))
            OR (i_category IN ('Men', 'Music') AND i_class IN ('jazz', 'pants') AND i_brand IN ('unibrand #1', 'namebrand #2'))
        )
    GROUP BY i_manufact_id, d_qoy
) AS quarters
WHERE CASE WHEN mean > 0 THEN abs(sales - mean) / mean END > 0.1
ORDER BY mean, sales, manufacturer
LIMIT 4;
