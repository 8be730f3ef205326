-- The best and the worst items of a store by mean profit, side by side.
WITH means AS (
    SELECT ss_item_sk AS item, avg(ss_net_profit) AS profit
    FROM store_sales
    WHERE ss_store_sk = 2
    GROUP BY ss_item_sk
    HAVING avg(ss_net_profit) > 0.9 * (
        SELECT avg(ss_net_profit) FROM store_sales WHERE ss_store_sk = 2 AND ss_hdemo_sk IS NULL GROUP BY ss_store_sk
    )
)
SELECT TRANSACTIONALLY worst.place, best_item.i_product_name AS best, worst_item.i_product_name AS worst
FROM (SELECT item, rank() OVER (ORDER BY profit ASC) AS place FROM means) AS worst
JOIN (SELECT item, rank() OVER (ORDER BY profit DESC) AS place FROM means) AS best ON best.place = worst.place
JOIN item AS best_item ON best_item.i_item_sk = best.item
JOIN item AS worst_item ON worst_item.i_item_sk = worst.item
WHERE worst.place < 11 AND best.place < 11
ORDER BY worst.place, best, worst
LIMIT 100;
