-- Sales to some households in a store, by half hour of the morning.
SELECT TRANSACTIONALLY *
FROM (
    SELECT count(*) AS from_8_30
    FROM store_sales JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk JOIN time_dim ON t_time_sk = ss_sold_time_sk
        JOIN store ON s_store_sk = ss_store_sk
    WHERE t_hour = 8 AND t_minute >= 30 AND s_store_name = 'able'
        AND ((hd_dep_count = 3 AND hd_vehicle_count <= 5) OR (hd_dep_count = 0 AND hd_vehicle_count <= 2) OR (hd_dep_count = 1 AND hd_vehicle_count <= 3))
) AS h1, (
    SELECT count(*) AS from_9
    FROM store_sales JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk JOIN time_dim ON t_time_sk = ss_sold_time_sk
        JOIN store ON s_store_sk = ss_store_sk
    WHERE t_hour = 9 AND t_minute < 30 AND s_store_name = 'able'
        AND ((hd_dep_count = 3 AND hd_vehicle_count <= 5) OR (hd_dep_count = 0 AND hd_vehicle_count <= 2) OR (hd_dep_count = 1 AND hd_vehicle_count <= 3))
) AS h2, (
    SELECT count(*) AS from_9_30
    FROM store_sales JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk JOIN time_dim ON t_time_sk = ss_sold_time_sk
        JOIN store ON s_store_sk = ss_store_sk
    WHERE t_hour = 9 AND t_minute >= 30 AND s_store_name = 'able'
        AND ((hd_dep_count = 3 AND hd_vehicle_count <= 5) OR (hd_dep_count = 0 AND hd_vehicle_count <= 2) OR (hd_dep_count = 1 AND hd_vehicle_count <= 3))
) AS h3, (
    SELECT count(*) AS from_10
    FROM store_sales JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk JOIN time_dim ON t_time_sk = ss_sold_time_sk
        JOIN store ON s_store_sk = ss_store_sk
    WHERE t_hour = 10 AND t_minute < 30 AND s_store_name = 'able'
        AND ((hd_dep_count = 3 AND hd_vehicle_count <= 5) OR (hd_dep_count = 0 AND hd_vehicle_count <= 2) OR (hd_dep_count = 1 AND hd_vehicle_count <= 3))
) AS h4, (
    SELECT count(*) AS from_10_30
    FROM store_sales JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk JOIN time_dim ON t_time_sk = ss_sold_time_sk
        JOIN store ON s_store_sk = ss_store_sk
    WHERE t_hour = 10 AND t_minute >= 30 AND s_store_name = 'able'
        AND ((hd_dep_count = 3 AND hd_vehicle_count <= 5) OR (hd_dep_count = 0 AND hd_vehicle_count <= 2) OR (hd_dep_count = 1 AND hd_vehicle_count <= 3))
) AS h5, (
    SELECT count(*) AS from_11
    FROM store_sales JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk JOIN time_dim ON t_time_sk = ss_sold_time_sk
        JOIN store ON s_store_sk = ss_store_sk
    WHERE t_hour = 11 AND t_minute < 30 AND s_store_name = 'able'
        AND ((hd_dep_count = 3 AND hd_vehicle_count <= 5) OR (hd_dep_count = 0 AND hd_vehicle_count <= 2) OR (hd_dep_count = 1 AND hd_vehicle_count <= 3))
) AS h6, (
    SELECT count(*) AS from_11_30
    FROM store_sales JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk JOIN time_dim ON t_time_sk = ss_sold_time_sk
        JOIN store ON s_store_sk = ss_store_sk
    WHERE t_hour = 11 AND t_minute >= 30 AND s_store_name = 'able'
        AND ((hd_dep_count = 3 AND hd_vehicle_count <= 5) OR (hd_dep_count = 0 AND hd_vehicle_count <= 2) OR (hd_dep_count = 1 AND hd_vehicle_count <= 3))
) AS h7, (
    SELECT count(*) AS from_12
    FROM store_sales JOIN household_demographics ON hd_demo_sk = ss_hdemo_sk JOIN time_dim ON t_time_sk = ss_sold_time_sk
        JOIN store ON s_store_sk = ss_store_sk
    WHERE t_hour = 12 AND t_minute < 30 AND s_store_name = 'able'
        AND ((hd_dep_count = 3 AND hd_vehicle_count <= 5) OR (hd_dep_count = 0 AND hd_vehicle_count <= 2) OR (hd_dep_count = 1 AND hd_vehicle_count <= 3))
) AS h8;
