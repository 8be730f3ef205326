-- Items whose stock varies much in two months that follow each other, by warehouse.
WITH varying AS (
    SELECT warehouse, item, in_month, mean, CASE mean WHEN 0 THEN NULL ELSE deviation / mean END AS variation
    FROM (
        SELECT inv_warehouse_sk AS warehouse, inv_item_sk AS item, d_moy AS in_month,
            stddev_samp(inv_quantity_on_hand) AS deviation, avg(inv_quantity_on_hand) AS mean
        FROM inventory
        JOIN item ON i_item_sk = inv_item_sk
        JOIN warehouse ON w_warehouse_sk = inv_warehouse_sk
        JOIN date_dim ON d_date_sk = inv_date_sk
        WHERE d_year = 2001
        GROUP BY inv_warehouse_sk, inv_item_sk, d_moy
    ) AS stock
    WHERE CASE mean WHEN 0 THEN 0 ELSE deviation / mean END > 0.1
)
SELECT TRANSACTIONALLY a.warehouse, a.item, a.in_month, a.mean, a.variation, b.in_month AS next_month, b.mean AS next_mean,
    b.variation AS next_variation
FROM varying AS a
JOIN varying AS b ON b.item = a.item AND b.warehouse = a.warehouse
WHERE a.in_month = 2 AND b.in_month = 3
ORDER BY a.warehouse, a.item, a.in_month, a.mean, a.variation, b.in_month, b.mean, b.variation;
