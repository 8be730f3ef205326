-- Mean stock by product, brand, class and category, and summed up to all.
SELECT TRANSACTIONALLY i_product_name, i_brand, i_class, i_category, avg(inv_quantity_on_hand) AS stock
FROM inventory
JOIN date_dim ON d_date_sk = inv_date_sk
JOIN item ON i_item_sk = inv_item_sk
WHERE d_month_seq BETWEEN 1180 AND 1191
GROUP BY ROLLUP (i_product_name, i_brand, i_class, i_category)
ORDER BY stock, i_product_name, i_brand, i_class, i_category
LIMIT 100;
