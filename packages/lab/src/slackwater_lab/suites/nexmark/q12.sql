-- Windows: how many bids each bidder makes in a minute.
SELECT TRANSACTIONALLY
    bidder, count(*) AS bids, date_trunc('minute', date_time) AS begins,
    date_trunc('minute', date_time) + INTERVAL '1 minute' AS ends
FROM bid
GROUP BY bidder, date_trunc('minute', date_time);
