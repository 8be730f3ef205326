-- Items whose stock in a warehouse was much the same a month before and a month after some day.
SELECT TRANSACTIONALLY warehouse, item, before, after
FROM (
    SELECT
        w_warehouse_name AS warehouse, i_item_id AS item,
        sum(CASE WHEN d_date < DATE '2001-05-15' THEN inv_quantity_on_hand ELSE 0 END) AS before,
        sum(CASE WHEN d_date >= DATE '2001-05-15' THEN inv_quantity_on_hand ELSE 0 END) AS after
    FROM inventory
    JOIN warehouse ON w_warehouse_sk = inv_warehouse_sk
    JOIN item ON i_item_sk = inv_item_sk
    JOIN date_dim ON d_date_sk = inv_date_sk
    WHERE i_current_price BETWEEN 1.10 AND 1.60 AND d_date BETWEEN DATE '2001-04-15' AND DATE '2001-06-14'
    GROUP BY w_warehouse_name, i_item_id
) AS stock
WHERE CASE WHEN before > 0 THEN after * 1.000 / before END BETWEEN 2.000 / 3.000 AND 3.000 / 2.000
ORDER BY warehouse, item
LIMIT 3;
