-- Web sales in the morning for each one in the evening, of some households on pages of some length.
SELECT TRANSACTIONALLY
    CASE WHEN evening = 0 THEN NULL ELSE CAST(morning AS numeric(15, 4)) / CAST(evening AS numeric(15, 4)) END AS ratio
FROM (
    SELECT count(*) AS morning
    FROM web_sales
    JOIN household_demographics ON hd_demo_sk = ws_ship_hdemo_sk
    JOIN time_dim ON t_time_sk = ws_sold_time_sk
    JOIN web_page ON wp_web_page_sk = ws_web_page_sk
    WHERE t_hour BETWEEN 9 AND 10 AND hd_dep_count = 2 AND wp_char_count BETWEEN 4000 AND 4200
) AS am, (
    SELECT count(*) AS evening
    FROM web_sales
    JOIN household_demographics ON hd_demo_sk = ws_ship_hdemo_sk
    JOIN time_dim ON t_time_sk = ws_sold_time_sk
    JOIN web_page ON wp_web_page_sk = ws_web_page_sk
    WHERE t_hour BETWEEN 15 AND 16 AND hd_dep_count = 2 AND wp_char_count BETWEEN 4000 AND 4200
) AS pm
ORDER BY ratio
LIMIT 100;
