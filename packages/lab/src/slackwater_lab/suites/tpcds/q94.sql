-- Web orders of a company's sites that were sent from several warehouses and never returned.
SELECT TRANSACTIONALLY
    count(DISTINCT ws_order_number) AS "order count", sum(ws_ext_ship_cost) AS "total shipping cost",
    sum(ws_net_profit) AS "total net profit"
FROM web_sales AS ws
JOIN date_dim ON d_date_sk = ws.ws_ship_date_sk
JOIN customer_address ON ca_address_sk = ws.ws_ship_addr_sk
JOIN web_site ON web_site_sk = ws.ws_web_site_sk
WHERE d_date BETWEEN DATE '2001-05-01' AND DATE '2001-06-30' AND ca_state = 'TX' AND web_company_name = 'able'
    AND EXISTS (
        SELECT * FROM web_sales AS o
        WHERE o.ws_order_number = ws.ws_order_number AND o.ws_warehouse_sk <> ws.ws_warehouse_sk
    )
    AND NOT EXISTS (SELECT * FROM web_returns AS r WHERE r.wr_order_number = ws.ws_order_number)
ORDER BY count(DISTINCT ws_order_number)
LIMIT 100;
