-- After how many days things come back that are returned in a month, by store.
SELECT TRANSACTIONALLY
    s_store_name, s_company_id, s_street_number, s_street_name, s_street_type, s_suite_number, s_city, s_county, s_state, s_zip,
    sum(CASE WHEN sr_returned_date_sk - ss_sold_date_sk <= 30 THEN 1 ELSE 0 END) AS "30 days",
    sum(CASE WHEN sr_returned_date_sk - ss_sold_date_sk > 30 AND sr_returned_date_sk - ss_sold_date_sk <= 60 THEN 1 ELSE 0 END) AS "31-60 days",
    sum(CASE WHEN sr_returned_date_sk - ss_sold_date_sk > 60 AND sr_returned_date_sk - ss_sold_date_sk <= 90 THEN 1 ELSE 0 END) AS "61-90 days",
    sum(CASE WHEN sr_returned_date_sk - ss_sold_date_sk > 90 AND sr_returned_date_sk - ss_sold_date_sk <= 120 THEN 1 ELSE 0 END) AS "91-120 days",
    sum(CASE WHEN sr_returned_date_sk - ss_sold_date_sk > 120 THEN 1 ELSE 0 END) AS ">120 days"
FROM store_sales
JOIN store_returns
    ON sr_ticket_number = ss_ticket_number AND sr_item_sk = ss_item_sk AND sr_customer_sk = ss_customer_sk
JOIN store ON s_store_sk = ss_store_sk
JOIN date_dim AS sold ON sold.d_date_sk = ss_sold_date_sk
JOIN date_dim AS returned ON returned.d_date_sk = sr_returned_date_sk
WHERE returned.d_year = 2001 AND returned.d_moy = 9
GROUP BY s_store_name, s_company_id, s_street_number, s_street_name, s_street_type, s_suite_number, s_city, s_county, s_state, s_zip
ORDER BY s_store_name, s_company_id, s_street_number, s_street_name, s_street_type, s_suite_number, s_city, s_county, s_state, s_zip
LIMIT 100;
