-- Items of some manufacturers and prices that were in stock in two months and are sold by catalog.
SELECT TRANSACTIONALLY i_item_id, i_item_desc, i_current_price
FROM item, inventory, date_dim, catalog_sales
WHERE i_current_price BETWEEN 22 AND 52 AND inv_item_sk = i_item_sk AND inv_date_sk = d_date_sk
    AND d_date BETWEEN DATE '2001-06-02' AND DATE '2001-08-01' AND i_manufact_id IN (678, 964, 918, 849)
    AND inv_quantity_on_hand BETWEEN 100 AND 500 AND cs_item_sk = i_item_sk
GROUP BY i_item_id, i_item_desc, i_current_price
ORDER BY i_item_id, i_item_desc, i_current_price
LIMIT 3;
