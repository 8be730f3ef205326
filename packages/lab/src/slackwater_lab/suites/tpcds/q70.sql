-- Profits of the best states and their counties, and in sum, each with its rank among those of its level.
SELECT TRANSACTIONALLY
    sum(ss_net_profit) AS profit, s_state, s_county, grouping(s_state) + grouping(s_county) AS level,
    rank() OVER (
        PARTITION BY grouping(s_state) + grouping(s_county), CASE WHEN grouping(s_county) = 0 THEN s_state END
        ORDER BY sum(ss_net_profit) DESC
    ) AS place
FROM store_sales
JOIN date_dim ON d_date_sk = ss_sold_date_sk
JOIN store ON s_store_sk = ss_store_sk
WHERE d_month_seq BETWEEN 1205 AND 1216
    AND s_state IN (
        SELECT state
        FROM (
            SELECT s_state AS state, rank() OVER (PARTITION BY s_state ORDER BY sum(ss_net_profit) DESC) AS place
            FROM store_sales
            JOIN store ON s_store_sk = ss_store_sk
            JOIN date_dim ON d_date_sk = ss_sold_date_sk
            WHERE d_month_seq BETWEEN 1205 AND 1216
            GROUP BY s_state
        ) AS states
        WHERE place <= 5
    )
GROUP BY ROLLUP (s_state, s_county)
ORDER BY level DESC, CASE WHEN grouping(s_state) + grouping(s_county) = 0 THEN s_state END, place, s_state, s_county
LIMIT 100;
