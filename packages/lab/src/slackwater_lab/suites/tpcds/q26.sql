-- Mean quantities and prices of promoted items that a group of people bought by catalog.
SELECT TRANSACTIONALLY
    i_item_id, avg(cs_quantity) AS quantity, avg(cs_list_price) AS list_price, avg(cs_coupon_amt) AS coupon,
    avg(cs_sales_price) AS sales_price
FROM catalog_sales
JOIN customer_demographics ON cd_demo_sk = cs_bill_cdemo_sk
JOIN date_dim ON d_date_sk = cs_sold_date_sk
JOIN item ON i_item_sk = cs_item_sk
JOIN promotion ON p_promo_sk = cs_promo_sk
WHERE cd_gender = 'F' AND cd_marital_status = 'M' AND cd_education_status = '2 yr Degree'
    AND (p_channel_email = 'N' OR p_channel_event = 'N') AND d_year = 2001
GROUP BY i_item_id
ORDER BY i_item_id
LIMIT 3;
