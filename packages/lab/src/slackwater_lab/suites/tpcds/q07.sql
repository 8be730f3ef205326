-- Mean quantities and prices of promoted items that a group of people bought in the store.
SELECT TRANSACTIONALLY
    i_item_id, avg(ss_quantity) AS quantity, avg(ss_list_price) AS list_price, avg(ss_coupon_amt) AS coupon,
    avg(ss_sales_price) AS sales_price
FROM store_sales
JOIN customer_demographics ON cd_demo_sk = ss_cdemo_sk
JOIN date_dim ON d_date_sk = ss_sold_date_sk
JOIN item ON i_item_sk = ss_item_sk
JOIN promotion ON p_promo_sk = ss_promo_sk
WHERE cd_gender = 'F' AND cd_marital_status = 'W' AND cd_education_status = 'Primary'
    AND (p_channel_email = 'N' OR p_channel_event = 'N') AND d_year = 2001
GROUP BY i_item_id
ORDER BY i_item_id
LIMIT 3;
