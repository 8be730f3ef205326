-- Sales of the stores of a time zone in a year, by weekday.
SELECT TRANSACTIONALLY
    s_store_name, s_store_id,
    sum(CASE WHEN d_day_name = 'Sunday' THEN ss_sales_price END) AS sun,
    sum(CASE WHEN d_day_name = 'Monday' THEN ss_sales_price END) AS mon,
    sum(CASE WHEN d_day_name = 'Tuesday' THEN ss_sales_price END) AS tue,
    sum(CASE WHEN d_day_name = 'Wednesday' THEN ss_sales_price END) AS wed,
    sum(CASE WHEN d_day_name = 'Thursday' THEN ss_sales_price END) AS thu,
    sum(CASE WHEN d_day_name = 'Friday' THEN ss_sales_price END) AS fri,
    sum(CASE WHEN d_day_name = 'Saturday' THEN ss_sales_price END) AS sat
FROM date_dim, store_sales, store
WHERE d_date_sk = ss_sold_date_sk AND s_store_sk = ss_store_sk AND s_gmt_offset = -6 AND d_year = 2001
GROUP BY s_store_name, s_store_id
ORDER BY s_store_name, s_store_id, sun, mon, tue, wed, thu, fri, sat
LIMIT 3;
