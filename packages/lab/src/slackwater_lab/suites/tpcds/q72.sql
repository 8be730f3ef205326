-- Catalog orders of items of which less was in stock than was ordered, with and without promotion.
SELECT TRANSACTIONALLY
    i_item_desc, w_warehouse_name, ordered.d_week_seq,
    sum(CASE WHEN p_promo_sk IS NULL THEN 1 ELSE 0 END) AS without_promotion,
    sum(CASE WHEN p_promo_sk IS NOT NULL THEN 1 ELSE 0 END) AS promoted, count(*) AS orders
FROM catalog_sales
JOIN inventory ON inv_item_sk = cs_item_sk
JOIN warehouse ON w_warehouse_sk = inv_warehouse_sk
JOIN item ON i_item_sk = cs_item_sk
JOIN customer_demographics ON cd_demo_sk = cs_bill_cdemo_sk
JOIN household_demographics ON hd_demo_sk = cs_bill_hdemo_sk
JOIN date_dim AS ordered ON ordered.d_date_sk = cs_sold_date_sk
JOIN date_dim AS counted ON counted.d_date_sk = inv_date_sk
JOIN date_dim AS sent ON sent.d_date_sk = cs_ship_date_sk
LEFT JOIN promotion ON p_promo_sk = cs_promo_sk
LEFT JOIN catalog_returns ON cr_item_sk = cs_item_sk AND cr_order_number = cs_order_number
WHERE counted.d_week_seq = ordered.d_week_seq AND inv_quantity_on_hand < cs_quantity AND sent.d_date >= ordered.d_date
    AND hd_buy_potential = '501-1000' AND ordered.d_year = 2001 AND cd_marital_status = 'S'
GROUP BY i_item_desc, w_warehouse_name, ordered.d_week_seq
ORDER BY orders DESC, i_item_desc, w_warehouse_name, ordered.d_week_seq
LIMIT 3;
