-- Means of store sales to a group of people by item and state, and summed up.
SELECT TRANSACTIONALLY
    i_item_id, s_state, grouping(s_state) AS all_states, avg(ss_quantity) AS quantity, avg(ss_list_price) AS list_price,
    avg(ss_coupon_amt) AS coupon, avg(ss_sales_price) AS sales_price
FROM store_sales
JOIN customer_demographics ON cd_demo_sk = ss_cdemo_sk
JOIN date_dim ON d_date_sk = ss_sold_date_sk
JOIN store ON s_store_sk = ss_store_sk
JOIN item ON i_item_sk = ss_item_sk
WHERE cd_gender = 'M' AND cd_marital_status = 'D' AND cd_education_status = 'College' AND d_year = 2001
    AND s_state IN ('SD', 'LA')
GROUP BY ROLLUP (i_item_id, s_state)
ORDER BY i_item_id, s_state
LIMIT 100;
