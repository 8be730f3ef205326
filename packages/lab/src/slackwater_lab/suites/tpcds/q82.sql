-- Items of some manufacturers and prices that were in stock in two months and are sold in stores.
SELECT TRANSACTIONALLY i_item_id, i_item_desc, i_current_price
FROM item
JOIN inventory ON inv_item_sk = i_item_sk
JOIN date_dim ON d_date_sk = inv_date_sk
JOIN store_sales ON ss_item_sk = i_item_sk
WHERE i_current_price BETWEEN 30 AND 60 AND d_date BETWEEN DATE '2001-07-11' AND DATE '2001-09-09'
    AND i_manufact_id IN (437, 227, 591, 639) AND inv_quantity_on_hand BETWEEN 100 AND 500
GROUP BY i_item_id, i_item_desc, i_current_price
ORDER BY i_item_id, i_item_desc, i_current_price
LIMIT 3;
