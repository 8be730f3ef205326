-- Web orders of a company's sites that were sent from several warehouses and returned.
WITH several AS (
    SELECT a.ws_order_number AS number
    FROM web_sales AS a
    JOIN web_sales AS b ON b.ws_order_number = a.ws_order_number AND b.ws_warehouse_sk <> a.ws_warehouse_sk
)
SELECT TRANSACTIONALLY
    count(DISTINCT ws_order_number) AS "order count", sum(ws_ext_ship_cost) AS "total shipping cost",
    sum(ws_net_profit) AS "total net profit"
FROM web_sales
JOIN date_dim ON d_date_sk = ws_ship_date_sk
JOIN customer_address ON ca_address_sk = ws_ship_addr_sk
JOIN web_site ON web_site_sk = ws_web_site_sk
WHERE d_date BETWEEN DATE '2001-04-01' AND DATE '2001-05-31' AND ca_state = 'NC' AND web_company_name = 'ought'
    AND ws_order_number IN (SELECT number FROM several)
    AND ws_order_number IN (SELECT wr_order_number FROM web_returns JOIN several ON number = wr_order_number)
ORDER BY count(DISTINCT ws_order_number)
LIMIT 100;
