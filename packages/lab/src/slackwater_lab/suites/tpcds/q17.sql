-- How quantities vary that were bought in the store, returned, and bought again by catalog.
SELECT TRANSACTIONALLY
    i_item_id, i_item_desc, s_state,
    count(ss_quantity) AS sold, avg(ss_quantity) AS sold_mean, stddev_samp(ss_quantity) AS sold_deviation,
    stddev_samp(ss_quantity) / nullif(avg(ss_quantity), 0) AS sold_variation,
    count(sr_return_quantity) AS returned, avg(sr_return_quantity) AS returned_mean,
    stddev_samp(sr_return_quantity) AS returned_deviation,
    count(cs_quantity) AS ordered, avg(cs_quantity) AS ordered_mean, stddev_samp(cs_quantity) AS ordered_deviation
FROM store_sales
JOIN store_returns ON sr_customer_sk = ss_customer_sk AND sr_item_sk = ss_item_sk AND sr_ticket_number = ss_ticket_number
JOIN catalog_sales ON cs_bill_customer_sk = sr_customer_sk AND cs_item_sk = sr_item_sk
JOIN date_dim AS bought ON bought.d_date_sk = ss_sold_date_sk
JOIN date_dim AS brought_back ON brought_back.d_date_sk = sr_returned_date_sk
JOIN date_dim AS again ON again.d_date_sk = cs_sold_date_sk
JOIN store ON s_store_sk = ss_store_sk
JOIN item ON i_item_sk = ss_item_sk
WHERE bought.d_quarter_name = '2001Q2' AND brought_back.d_quarter_name IN ('2001Q2', '2001Q3', '2001Q4')
    AND again.d_quarter_name IN ('2001Q2', '2001Q3', '2001Q4')
GROUP BY i_item_id, i_item_desc, s_state
ORDER BY i_item_id, i_item_desc, s_state
LIMIT 100;
