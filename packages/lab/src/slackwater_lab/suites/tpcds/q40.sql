-- Catalog sales less refunds by warehouse state and item, before and after some day.
SELECT TRANSACTIONALLY
    w_state, i_item_id,
    sum(CASE WHEN d_date < DATE '2001-04-08' THEN cs_sales_price - coalesce(cr_refunded_cash, 0) ELSE 0 END) AS before,
    sum(CASE WHEN d_date >= DATE '2001-04-08' THEN cs_sales_price - coalesce(cr_refunded_cash, 0) ELSE 0 END) AS after
FROM catalog_sales
LEFT JOIN catalog_returns ON cr_order_number = cs_order_number AND cr_item_sk = cs_item_sk
JOIN warehouse ON w_warehouse_sk = cs_warehouse_sk
JOIN item ON i_item_sk = cs_item_sk
JOIN date_dim ON d_date_sk = cs_sold_date_sk
WHERE i_current_price BETWEEN 1.20 AND 1.70 AND d_date BETWEEN DATE '2001-03-09' AND DATE '2001-05-08'
GROUP BY w_state, i_item_id
ORDER BY w_state, i_item_id
LIMIT 4;
