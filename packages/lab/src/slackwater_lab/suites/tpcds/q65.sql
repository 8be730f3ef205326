-- Items that brought a store at most a tenth of the mean of its items.
WITH revenue AS (
    SELECT ss_store_sk AS place, ss_item_sk AS item, sum(ss_sales_price) AS amount
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE d_month_seq BETWEEN 1195 AND 1206
    GROUP BY ss_store_sk, ss_item_sk
)
SELECT TRANSACTIONALLY s_store_name, i_item_desc, r.amount, i_current_price, i_wholesale_cost, i_brand
FROM revenue AS r
JOIN (SELECT place, avg(amount) AS mean FROM revenue GROUP BY place) AS m ON m.place = r.place
JOIN store ON s_store_sk = r.place
JOIN item ON i_item_sk = r.item
WHERE r.amount <= 0.5 * m.mean
ORDER BY s_store_name, i_item_desc, s_store_sk, i_item_sk
LIMIT 3;
