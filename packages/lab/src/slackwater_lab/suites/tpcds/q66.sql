-- Web and catalog sales that two carriers brought, by warehouse and month, and per square foot.
SELECT TRANSACTIONALLY
    w_warehouse_name, w_warehouse_sq_ft, w_city, w_county, w_state, w_country, carriers, in_year,
    sum(jan) AS jan, sum(feb) AS feb, sum(mar) AS mar, sum(apr) AS apr, sum(may) AS may, sum(jun) AS jun, sum(jul) AS jul,
    sum(aug) AS aug, sum(sep) AS sep, sum(oct) AS oct, sum(nov) AS nov, sum("dec") AS "dec",
    sum(jan / w_warehouse_sq_ft) AS jan_a_foot, sum(jun / w_warehouse_sq_ft) AS jun_a_foot,
    sum("dec" / w_warehouse_sq_ft) AS dec_a_foot, sum(jan_net) AS jan_net, sum(jun_net) AS jun_net, sum(dec_net) AS dec_net
FROM (
    SELECT w_warehouse_name, w_warehouse_sq_ft, w_city, w_county, w_state, w_country, 'GERMA,ZOUROS' AS carriers, d_year AS in_year,
        sum(CASE WHEN d_moy = 1 THEN ws_sales_price * ws_quantity ELSE 0 END) AS jan,
        sum(CASE WHEN d_moy = 2 THEN ws_sales_price * ws_quantity ELSE 0 END) AS feb,
        sum(CASE WHEN d_moy = 3 THEN ws_sales_price * ws_quantity ELSE 0 END) AS mar,
        sum(CASE WHEN d_moy = 4 THEN ws_sales_price * ws_quantity ELSE 0 END) AS apr,
        sum(CASE WHEN d_moy = 5 THEN ws_sales_price * ws_quantity ELSE 0 END) AS may,
        sum(CASE WHEN d_moy = 6 THEN ws_sales_price * ws_quantity ELSE 0 END) AS jun,
        sum(CASE WHEN d_moy = 7 THEN ws_sales_price * ws_quantity ELSE 0 END) AS jul,
        sum(CASE WHEN d_moy = 8 THEN ws_sales_price * ws_quantity ELSE 0 END) AS aug,
        sum(CASE WHEN d_moy = 9 THEN ws_sales_price * ws_quantity ELSE 0 END) AS sep,
        sum(CASE WHEN d_moy = 10 THEN ws_sales_price * ws_quantity ELSE 0 END) AS oct,
        sum(CASE WHEN d_moy = 11 THEN ws_sales_price * ws_quantity ELSE 0 END) AS nov,
        sum(CASE WHEN d_moy = 12 THEN ws_sales_price * ws_quantity ELSE 0 END) AS "dec",
        sum(CASE WHEN d_moy = 1 THEN ws_net_paid_inc_tax * ws_quantity ELSE 0 END) AS jan_net,
        sum(CASE WHEN d_moy = 6 THEN ws_net_paid_inc_tax * ws_quantity ELSE 0 END) AS jun_net,
        sum(CASE WHEN d_moy = 12 THEN ws_net_paid_inc_tax * ws_quantity ELSE 0 END) AS dec_net
    FROM web_sales
    JOIN warehouse ON w_warehouse_sk = ws_warehouse_sk
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    JOIN time_dim ON t_time_sk = ws_sold_time_sk
    JOIN ship_mode ON sm_ship_mode_sk = ws_ship_mode_sk
    WHERE d_year = 2001 AND t_time BETWEEN 30838 AND 59638 AND sm_carrier IN ('GERMA', 'ZOUROS')
    GROUP BY w_warehouse_name, w_warehouse_sq_ft, w_city, w_county, w_state, w_country, d_year
    UNION ALL
    SELECT w_warehouse_name, w_warehouse_sq_ft, w_city, w_county, w_state, w_country, 'GERMA,ZOUROS', d_year,
        sum(CASE WHEN d_moy = 1 THEN cs_sales_price * cs_quantity ELSE 0 END),
        sum(CASE WHEN d_moy = 2 THEN cs_sales_price * cs_quantity ELSE 0 END),
        sum(CASE WHEN d_moy = 3 THEN cs_sales_price * cs_quantity ELSE 0 END),
        sum(CASE WHEN d_moy = 4 THEN cs_sales_price * cs_quantity ELSE 0 END),
        sum(CASE WHEN d_moy = 5 THEN cs_sales_price * cs_quantity ELSE 0 END),
        sum(CASE WHEN d_moy = 6 THEN cs_sales_price * cs_quantity ELSE 0 END),
        sum(CASE WHEN d_moy = 7 THEN cs_sales_price * cs_quantity ELSE 0 END),
        sum(CASE WHEN d_moy = 8 THEN cs_sales_price * cs_quantity ELSE 0 END),
        sum(CASE WHEN d_moy = 9 THEN cs_sales_price * cs_quantity ELSE 0 END),
        sum(CASE WHEN d_moy = 10 THEN cs_sales_price * cs_quantity ELSE 0 END),
        sum(CASE WHEN d_moy = 11 THEN cs_sales_price * cs_quantity ELSE 0 END),
        sum(CASE WHEN d_moy = 12 THEN cs_sales_price * cs_quantity ELSE 0 END),
        sum(CASE WHEN d_moy = 1 THEN cs_net_paid_inc_ship * cs_quantity ELSE 0 END),
        sum(CASE WHEN d_moy = 6 THEN cs_net_paid_inc_ship * cs_quantity ELSE 0 END),
        sum(CASE WHEN d_moy = 12 THEN cs_net_paid_inc_ship * cs_quantity ELSE 0 END)
    FROM catalog_sales
    JOIN warehouse ON w_warehouse_sk = cs_warehouse_sk
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    JOIN time_dim ON t_time_sk = cs_sold_time_sk
    JOIN ship_mode ON sm_ship_mode_sk = cs_ship_mode_sk
    WHERE d_year = 2001 AND t_time BETWEEN 30838 AND 59638 AND sm_carrier IN ('GERMA', 'ZOUROS')
    GROUP BY w_warehouse_name, w_warehouse_sq_ft, w_city, w_county, w_state, w_country, d_year
) AS sold
GROUP BY w_warehouse_name, w_warehouse_sq_ft, w_city, w_county, w_state, w_country, carriers, in_year
ORDER BY w_warehouse_name, w_warehouse_sq_ft, w_city, w_county, w_state, w_country
LIMIT 100;
