-- Catalog and web sales of each weekday against those of the same week one year later.
WITH sold AS (
    SELECT ws_sold_date_sk AS day, ws_ext_sales_price AS price FROM web_sales
    UNION ALL
    SELECT cs_sold_date_sk, cs_ext_sales_price FROM catalog_sales
), weekly AS (
    SELECT
        d_week_seq AS week,
        sum(price) FILTER (WHERE d_day_name = 'Sunday') AS sun,
        sum(price) FILTER (WHERE d_day_name = 'Monday') AS mon,
        sum(price) FILTER (WHERE d_day_name = 'Tuesday') AS tue,
        sum(price) FILTER (WHERE d_day_name = 'Wednesday') AS wed,
        sum(price) FILTER (WHERE d_day_name = 'Thursday') AS thu,
        sum(price) FILTER (WHERE d_day_name = 'Friday') AS fri,
        sum(price) FILTER (WHERE d_day_name = 'Saturday') AS sat
    FROM sold
    JOIN date_dim ON d_date_sk = day
    GROUP BY d_week_seq
)
SELECT TRANSACTIONALLY
    a.week,
    round(a.sun / nullif(b.sun, 0), 2) AS sun,
    round(a.mon / nullif(b.mon, 0), 2) AS mon,
    round(a.tue / nullif(b.tue, 0), 2) AS tue,
    round(a.wed / nullif(b.wed, 0), 2) AS wed,
    round(a.thu / nullif(b.thu, 0), 2) AS thu,
    round(a.fri / nullif(b.fri, 0), 2) AS fri,
    round(a.sat / nullif(b.sat, 0), 2) AS sat
FROM (SELECT w.* FROM weekly AS w JOIN date_dim AS d ON d.d_week_seq = w.week WHERE d.d_year = 2000) AS a
JOIN (SELECT w.* FROM weekly AS w JOIN date_dim AS d ON d.d_week_seq = w.week WHERE d.d_year = 2001) AS b
    ON a.week = b.week - 53
ORDER BY a.week;
