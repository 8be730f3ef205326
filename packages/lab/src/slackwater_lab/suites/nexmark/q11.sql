-- User sessions: bids of a bidder with less than ten seconds between them.
SELECT TRANSACTIONALLY bidder, session, count(*) AS bids, min(date_time) AS begins, max(date_time) AS ends
FROM (
    SELECT bidder, date_time,
        sum(CASE WHEN is_first THEN 1 ELSE 0 END) OVER (PARTITION BY bidder ORDER BY date_time, bid_id) AS session
    FROM (
        SELECT bidder, date_time, bid_id,
            coalesce(
                date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time, bid_id) > INTERVAL '10 seconds', true
            ) AS is_first
        FROM bid
    ) AS marked
) AS numbered
GROUP BY bidder, session;
