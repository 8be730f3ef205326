-- Catalog orders of a county's call centers that were sent from several warehouses and never returned.
SELECT TRANSACTIONALLY
    count(DISTINCT cs.cs_order_number) AS "order count", sum(cs.cs_ext_ship_cost) AS "total shipping cost",
    sum(cs.cs_net_profit) AS "total net profit"
FROM catalog_sales AS cs
JOIN date_dim ON d_date_sk = cs.cs_ship_date_sk
JOIN customer_address ON ca_address_sk = cs.cs_ship_addr_sk
JOIN call_center ON cc_call_center_sk = cs.cs_call_center_sk
WHERE d_date BETWEEN DATE '2001-03-01' AND DATE '2001-04-30' AND ca_state = 'NY' AND cc_county = 'Ziebach County'
    AND EXISTS (
        SELECT 1 FROM catalog_sales AS o
        WHERE o.cs_order_number = cs.cs_order_number AND o.cs_warehouse_sk <> cs.cs_warehouse_sk
    )
    AND NOT EXISTS (SELECT 1 FROM catalog_returns AS r WHERE r.cr_order_number = cs.cs_order_number)
ORDER BY count(DISTINCT cs.cs_order_number)
LIMIT 100;
