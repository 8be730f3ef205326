-- Calculation: converted prices in a range, the time of day, and how often a letter occurs.
SELECT TRANSACTIONALLY
    auction, bidder, 0.908 * price AS price,
    CASE
        WHEN extract(hour FROM date_time) >= 8 AND extract(hour FROM date_time) <= 18 THEN 'dayTime'
        WHEN extract(hour FROM date_time) <= 6 OR extract(hour FROM date_time) >= 20 THEN 'nightTime'
        ELSE 'otherTime'
    END AS time_of_day,
    date_time, length(extra) - length(replace(extra, 'c', '')) AS letters
FROM bid
WHERE 0.908 * price > 1000 AND 0.908 * price < 50000000;
