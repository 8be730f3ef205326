-- Profit and loss of items that were bought in the store, returned, and bought by catalog.
SELECT TRANSACTIONALLY
    i_item_id, i_item_desc, s_store_id, s_store_name, sum(ss_net_profit) AS store_profit, sum(sr_net_loss) AS store_loss,
    sum(cs_net_profit) AS catalog_profit
FROM store_sales
JOIN store_returns ON sr_customer_sk = ss_customer_sk AND sr_item_sk = ss_item_sk AND sr_ticket_number = ss_ticket_number
JOIN catalog_sales ON cs_bill_customer_sk = sr_customer_sk AND cs_item_sk = sr_item_sk
JOIN date_dim AS bought ON bought.d_date_sk = ss_sold_date_sk
JOIN date_dim AS brought_back ON brought_back.d_date_sk = sr_returned_date_sk
JOIN date_dim AS again ON again.d_date_sk = cs_sold_date_sk
JOIN store ON s_store_sk = ss_store_sk
JOIN item ON i_item_sk = ss_item_sk
WHERE bought.d_moy = 5 AND bought.d_year = 2001 AND brought_back.d_moy BETWEEN 5 AND 11 AND brought_back.d_year = 2001
    AND again.d_moy BETWEEN 5 AND 11 AND again.d_year = 2001
GROUP BY i_item_id, i_item_desc, s_store_id, s_store_name
ORDER BY i_item_id, i_item_desc, s_store_id, s_store_name
LIMIT 100;
