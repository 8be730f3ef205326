-- After how many days catalog orders are sent, by warehouse, way of sending and call center.
SELECT TRANSACTIONALLY
    substring(w_warehouse_name FROM 1 FOR 20) AS warehouse, sm_type, cc_name,
    sum(CASE WHEN cs_ship_date_sk - cs_sold_date_sk <= 30 THEN 1 ELSE 0 END) AS "30 days",
    sum(CASE WHEN cs_ship_date_sk - cs_sold_date_sk > 30 AND cs_ship_date_sk - cs_sold_date_sk <= 60 THEN 1 ELSE 0 END) AS "31-60 days",
    sum(CASE WHEN cs_ship_date_sk - cs_sold_date_sk > 60 AND cs_ship_date_sk - cs_sold_date_sk <= 90 THEN 1 ELSE 0 END) AS "61-90 days",
    sum(CASE WHEN cs_ship_date_sk - cs_sold_date_sk > 90 THEN 1 ELSE 0 END) AS ">90 days"
FROM catalog_sales
JOIN warehouse ON w_warehouse_sk = cs_warehouse_sk
JOIN ship_mode ON sm_ship_mode_sk = cs_ship_mode_sk
JOIN call_center ON cc_call_center_sk = cs_call_center_sk
JOIN date_dim ON d_date_sk = cs_ship_date_sk
WHERE d_month_seq BETWEEN 1182 AND 1193
GROUP BY substring(w_warehouse_name FROM 1 FOR 20), sm_type, cc_name
ORDER BY warehouse, sm_type, cc_name
LIMIT 4;
