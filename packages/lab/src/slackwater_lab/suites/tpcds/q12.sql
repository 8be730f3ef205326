-- Web revenue of items and their part of the revenue of their class.
SELECT TRANSACTIONALLY
    i_item_id, i_item_desc, i_category, i_class, i_current_price, sum(ws_ext_sales_price) AS revenue,
    sum(ws_ext_sales_price) * 100.0 / sum(sum(ws_ext_sales_price)) OVER (PARTITION BY i_class) AS share
FROM web_sales
JOIN item ON i_item_sk = ws_item_sk
JOIN date_dim ON d_date_sk = ws_sold_date_sk
WHERE i_category IN ('Shoes', 'Music', 'Garden') AND d_date BETWEEN DATE '2001-04-02' AND DATE '2001-05-02'
GROUP BY i_item_id, i_item_desc, i_category, i_class, i_current_price
ORDER BY i_category, i_class, i_item_id, i_item_desc, share, i_current_price
LIMIT 4;
