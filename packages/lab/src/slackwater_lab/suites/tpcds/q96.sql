-- How many sales a store has in half an hour of the evening to households of some size.
SELECT TRANSACTIONALLY count(*) AS number
FROM store_sales
JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk
JOIN time_dim ON t_time_sk = ss_sold_time_sk
JOIN store ON s_store_sk = ss_store_sk
WHERE t_hour = 16 AND t_minute >= 30 AND hd_dep_count = 6 AND s_store_name = 'bar'
ORDER BY count(*)
LIMIT 100;
