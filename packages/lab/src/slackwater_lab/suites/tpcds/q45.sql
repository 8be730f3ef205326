-- Web sales by zip code and city: listed codes, or listed items.
SELECT TRANSACTIONALLY ca_zip, ca_city, sum(ws_sales_price) AS sales
FROM web_sales, customer, customer_address, date_dim, item
WHERE ws_bill_customer_sk = c_customer_sk AND c_current_addr_sk = ca_address_sk AND ws_item_sk = i_item_sk
    AND (
        substring(ca_zip FROM 1 FOR 5) IN ('48226', '70112', '97201')
        OR i_item_id IN (SELECT i_item_id FROM item WHERE i_item_sk IN (2, 3, 5, 7))
    )
    AND ws_sold_date_sk = d_date_sk AND d_qoy = 4 AND d_year = 2001
GROUP BY ca_zip, ca_city
ORDER BY ca_zip, ca_city
LIMIT 3;
