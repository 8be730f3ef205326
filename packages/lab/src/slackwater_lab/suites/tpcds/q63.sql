-- Months in which the sales of a manager's items were far from their mean.
SELECT TRANSACTIONALLY manager, sales, mean
FROM (
    SELECT i_manager_id AS manager, sum(ss_sales_price) AS sales, avg(sum(ss_sales_price)) OVER (PARTITION BY i_manager_id) AS mean
    FROM store_sales
    JOIN item ON i_item_sk = ss_item_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    JOIN store ON s_store_sk = ss_store_sk
    WHERE d_month_seq IN (1181, 1182, 1183, 1184, 1185, 1186)
        AND (
            (i_category IN ('Sports', 'Shoes') AND i_class IN ('golf', 'kids') AND i_brand IN ('corpbrand #5', 'maxibrand #6'))
            OR (i_category IN ('Women', 'Children') AND i_class IN ('swimwear', 'toddlers') AND i_brand IN ('unibrand #7', 'namebrand #4'))
        )
    GROUP BY i_manager_id, d_moy
) AS months
WHERE CASE WHEN mean > 0 THEN abs(sales - mean) / mean END > 0.1
ORDER BY manager, mean, sales
LIMIT 4;
