-- Store sales of each weekday against those of the same week one year later.
WITH weekly AS (
    SELECT
        d_week_seq AS week, ss_store_sk AS place,
        sum(CASE WHEN d_day_name = 'Sunday' THEN ss_sales_price END) AS sun,
        sum(CASE WHEN d_day_name = 'Monday' THEN ss_sales_price END) AS mon,
        sum(CASE WHEN d_day_name = 'Tuesday' THEN ss_sales_price END) AS tue,
        sum(CASE WHEN d_day_name = 'Wednesday' THEN ss_sales_price END) AS wed,
        sum(CASE WHEN d_day_name = 'Thursday' THEN ss_sales_price END) AS thu,
        sum(CASE WHEN d_day_name = 'Friday' THEN ss_sales_price END) AS fri,
        sum(CASE WHEN d_day_name = 'Saturday' THEN ss_sales_price END) AS sat
    FROM store_sales
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    GROUP BY d_week_seq, ss_store_sk
), dated AS (
    SELECT s_store_name AS store_name, s_store_id AS store_id, d_month_seq AS in_month, w.*
    FROM weekly AS w
    JOIN store ON s_store_sk = w.place
    JOIN date_dim ON d_week_seq = w.week
)
SELECT TRANSACTIONALLY
    a.store_name, a.store_id, a.week,
    a.sun / nullif(b.sun, 0) AS sun, a.mon / nullif(b.mon, 0) AS mon, a.tue / nullif(b.tue, 0) AS tue,
    a.wed / nullif(b.wed, 0) AS wed, a.thu / nullif(b.thu, 0) AS thu, a.fri / nullif(b.fri, 0) AS fri,
    a.sat / nullif(b.sat, 0) AS sat
FROM dated AS a
JOIN dated AS b ON b.store_id = a.store_id AND a.week = b.week - 53
WHERE a.in_month BETWEEN 1190 AND 1201 AND b.in_month BETWEEN 1202 AND 1213
ORDER BY a.store_name, a.store_id, a.week
LIMIT 100;
